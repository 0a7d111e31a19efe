"""The cases of gRPC's interoperation tests by grpcio: client.py ADDRESS [FILE]. Prints a line for each, and `N passed, N failed`.
FILE has the authorities of a server under TLS."""

import pathlib
import queue
import sys
import time

import cases
import grpc
import test_pb2 as pb
import test_pb2_grpc

options = [("grpc.enable_http_proxy", 0)]
if len(sys.argv) > 2:
    credentials = grpc.ssl_channel_credentials(pathlib.Path(sys.argv[2]).read_bytes())
    channel = grpc.secure_channel(sys.argv[1], credentials, options=options)
else:
    channel = grpc.insecure_channel(sys.argv[1], options=options)
stub = test_pb2_grpc.TestServiceStub(channel)
DOWN, UP = (31415, 9, 2653, 58979), (27182, 8, 1828, 45904)


def payload(size):
    return pb.Payload(body=bytes(size))


def wanted(size, interval_us=0):
    return pb.ResponseParameters(size=size, interval_us=interval_us)


def fails(code, call, details=None):
    """`call` must end with `code`."""
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() is code, error
        assert details is None or error.details() == details, error
        return
    raise AssertionError(f"it ended well; {code} was wanted")


def empty_unary():
    assert stub.EmptyCall(pb.Empty(), timeout=10) == pb.Empty()


def large_unary():
    request = pb.SimpleRequest(response_size=314159, payload=payload(271828))
    assert len(stub.UnaryCall(request, timeout=10).payload.body) == 314159


def client_streaming():
    requests = (pb.StreamingInputCallRequest(payload=payload(size)) for size in UP)
    assert stub.StreamingInputCall(requests, timeout=10).aggregated_payload_size == sum(UP)


def server_streaming():
    request = pb.StreamingOutputCallRequest(response_parameters=[wanted(size) for size in DOWN])
    assert tuple(len(answer.payload.body) for answer in stub.StreamingOutputCall(request, timeout=10)) == DOWN


def ping_pong():
    requests = queue.Queue()
    answers = stub.FullDuplexCall(iter(requests.get, None), timeout=10)
    for down, up in zip(DOWN, UP):
        requests.put(pb.StreamingOutputCallRequest(response_parameters=[wanted(down)], payload=payload(up)))
        assert len(next(answers).payload.body) == down
    requests.put(None)
    assert next(answers, None) is None


def empty_stream():
    assert list(stub.FullDuplexCall(iter(()), timeout=10)) == []


def cancel_after_begin():
    requests = queue.Queue()
    call = stub.StreamingInputCall.future(iter(requests.get, None))
    call.cancel()
    requests.put(None)
    assert call.code() is grpc.StatusCode.CANCELLED


def cancel_after_first_response():
    requests = queue.Queue()
    answers = stub.FullDuplexCall(iter(requests.get, None))
    requests.put(pb.StreamingOutputCallRequest(response_parameters=[wanted(31415)], payload=payload(27182)))
    assert len(next(answers).payload.body) == 31415
    answers.cancel()
    requests.put(None)
    fails(grpc.StatusCode.CANCELLED, lambda: next(answers))


def timeout_on_sleeping_server():
    began = time.monotonic()
    request = pb.StreamingOutputCallRequest(response_parameters=[wanted(1, interval_us=5_000_000)])
    fails(grpc.StatusCode.DEADLINE_EXCEEDED, lambda: list(stub.StreamingOutputCall(request, timeout=0.1)))
    assert time.monotonic() - began < 2


def custom_metadata():
    initial = ("x-grpc-test-echo-initial", "test_initial_metadata_value")
    trailing = ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab")
    _, call = stub.UnaryCall.with_call(pb.SimpleRequest(response_size=1), metadata=(initial, trailing), timeout=10)
    assert initial in [tuple(pair) for pair in call.initial_metadata()]
    assert trailing in [tuple(pair) for pair in call.trailing_metadata()]


def status_code_and_message():
    for message in ("test status message", "\t\nwhitespace\r\nand Unicode: \u263a \U0001f608\t\n"):
        request = pb.SimpleRequest(response_status=pb.EchoStatus(code=2, message=message))
        fails(grpc.StatusCode.UNKNOWN, lambda: stub.UnaryCall(request, timeout=10), message)


def unimplemented_method():
    method = channel.unary_unary("/grpc.testing.TestService/UnimplementedCall")
    fails(grpc.StatusCode.UNIMPLEMENTED, lambda: method(b"", timeout=10))


def unimplemented_service():
    method = channel.unary_unary("/grpc.testing.UnimplementedService/UnimplementedCall")
    fails(grpc.StatusCode.UNIMPLEMENTED, lambda: method(b"", timeout=10))


cases.run((
    empty_unary, large_unary, client_streaming, server_streaming, ping_pong, empty_stream, cancel_after_begin,
    cancel_after_first_response, timeout_on_sleeping_server, custom_metadata, status_code_and_message,
    unimplemented_method, unimplemented_service,
))
