use sheafio_mempool::PoolCache;

fn free_twice(cache: &mut PoolCache) {
    let frame = cache.alloc().unwrap();
    cache.free(frame);
    cache.free(frame);
}

fn main() {}
