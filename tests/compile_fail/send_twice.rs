use sheafio_mempool::{Burst, PoolCache};

fn send_twice(cache: &mut PoolCache, burst: &mut Burst) {
    let frame = cache.alloc().unwrap();
    burst.push(frame).unwrap();
    burst.push(frame).unwrap();
}

fn main() {}
