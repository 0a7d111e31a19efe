use gimmal_rpc::Cx;

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Wrong {
    fn greet(&self, cx: &Cx, name: String) -> String;
}

fn main() {}
