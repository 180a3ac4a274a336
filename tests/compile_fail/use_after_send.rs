use sheafio_core::Queue;
use sheafio_mempool::{Burst, PoolCache};

fn use_after_send(queue: &mut impl Queue, cache: &mut PoolCache, burst: &mut Burst) {
    let first = &burst[0];
    queue.tx_burst(cache, burst);
    assert_eq!(first.len(), 60);
}

fn main() {}
