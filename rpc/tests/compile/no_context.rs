use gimmal_rpc::Cx;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wrong {
    async fn greet(&self, name: String) -> String;
}

fn main() {}
