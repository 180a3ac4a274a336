use sheafio_mempool::Mempool;

fn alloc_without_cache(pool: &'static Mempool) {
    let frame = pool.alloc().unwrap();
    pool.free(frame);
}

fn main() {}
