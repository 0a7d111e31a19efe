"""Asks a server for its health and its services by grpcio: reflection.py ADDRESS. Prints `N passed, N failed`."""

import sys

import cases
import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_http_proxy", 0)])
health = health_pb2_grpc.HealthStub(channel)
reflection = ProtoReflectionDescriptorDatabase(channel)


def health_is_serving():
    asked = health_pb2.HealthCheckRequest(service="grpc.health.v1.Health")
    assert health.Check(asked, timeout=10).status == health_pb2.HealthCheckResponse.SERVING


def an_unknown_service_has_no_health():
    try:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.NOT_FOUND, error
        return
    raise AssertionError("it has one")


def health_is_watched():
    watched = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=10)
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
    watched.cancel()


def services_are_listed():
    assert "grpc.health.v1.Health" in reflection.get_services()


def methods_are_described():
    service = DescriptorPool(reflection).FindServiceByName("grpc.health.v1.Health")
    assert {"Check", "Watch"} <= {method.name for method in service.methods}


cases.run((
    health_is_serving,
    an_unknown_service_has_no_health,
    health_is_watched,
    services_are_listed,
    methods_are_described,
))
