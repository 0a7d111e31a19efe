//! Health and reflection by tonic's own crates, over gimmal: `cargo run -p gimmal-tonic --example reflected -- shm://reflected`.

use std::{env, error::Error};

use tonic_health::pb::{FILE_DESCRIPTOR_SET, health_server::HealthServer};
use tonic_reflection::server::Builder;

#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "shm://reflected".to_owned());
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<HealthServer<tonic_health::server::HealthService>>().await;
    let described = || Builder::configure().register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET);
    println!("{url}, until Ctrl-C");
    gimmal_tonic::Server::builder()
        .add_service(health)
        .add_service(described().build_v1()?)
        .add_service(described().build_v1alpha()?)
        .serve_with_shutdown(&url, tokio::signal::ctrl_c())
        .await?;
    Ok(())
}
