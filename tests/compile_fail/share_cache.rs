use sheafio_mempool::Mempool;

fn share_cache(pool: &'static Mempool) {
    let cache = pool.cache().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| println!("{cache:?}"));
    });
}

fn main() {}
