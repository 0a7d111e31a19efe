"""The service of gRPC's interoperation tests by grpcio, for clients of any kind: server.py ADDRESS."""

import sys
import time
from concurrent import futures

import grpc
import test_pb2 as pb
import test_pb2_grpc

CODES = {code.value[0]: code for code in grpc.StatusCode}


def echo_metadata(context):
    metadata = dict(context.invocation_metadata())
    initial, trailing = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
    if initial in metadata:
        context.send_initial_metadata(((initial, metadata[initial]),))
    if trailing in metadata:
        context.set_trailing_metadata(((trailing, metadata[trailing]),))


def end_as_asked(request, context):
    if request.response_status.code:
        context.abort(CODES[request.response_status.code], request.response_status.message)


def answers(request):
    for wanted in request.response_parameters:
        time.sleep(wanted.interval_us / 1e6)
        yield pb.StreamingOutputCallResponse(payload=pb.Payload(body=bytes(wanted.size)))


class Service(test_pb2_grpc.TestServiceServicer):
    def EmptyCall(self, request, context):
        return pb.Empty()

    def UnaryCall(self, request, context):
        echo_metadata(context)
        end_as_asked(request, context)
        return pb.SimpleResponse(payload=pb.Payload(body=bytes(request.response_size)))

    def StreamingOutputCall(self, request, context):
        yield from answers(request)

    def StreamingInputCall(self, requests, context):
        return pb.StreamingInputCallResponse(aggregated_payload_size=sum(len(it.payload.body) for it in requests))

    def FullDuplexCall(self, requests, context):
        echo_metadata(context)
        for request in requests:
            end_as_asked(request, context)
            yield from answers(request)


server = grpc.server(futures.ThreadPoolExecutor(16))
test_pb2_grpc.add_TestServiceServicer_to_server(Service(), server)
assert server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
