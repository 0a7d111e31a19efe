//! The example of the README, to the letter.

#![forbid(unsafe_code)]

use gimmal::Cx;

#[gimmal::service]
trait Greeter {
    async fn hello(&self, cx: &Cx, name: String) -> String;
}

struct Polite;

impl Greeter for Polite {
    async fn hello(&self, cx: &Cx, name: String) -> String {
        format!("good day, {name}; you are {}", cx.peer())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let _server = gimmal::serve("shm://greeter", serve_greeter(Polite))?; // serves until it is dropped
    let client = GreeterClient::new(gimmal::connect("shm://greeter")?);
    println!("{}", client.hello("Ada".to_owned()).wait()?); // or `.await`, on any runtime
    Ok(())
}
