"""The messages of Envoy's external processing protocol, as far as an endpoint picker reads and writes them.

They are described here by name, number and type, in a descriptor pool of their own: a program that has Envoy's
generated files loaded too keeps them. A field that is not listed is carried along unread, as protobuf does.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, message_factory, struct_pb2
from google.protobuf.descriptor_pool import DescriptorPool

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
"""Full name of the service, which is also the name of its health check."""

METHOD = f"/{SERVICE}/Process"

CORE = "envoy.config.core.v3"
HTTP = "envoy.type.v3"
MODES = "envoy.extensions.filters.http.ext_proc.v3"
PROC = "envoy.service.ext_proc.v3"
STRUCT = "google.protobuf.Struct"

# Per package and message: "number name type", behind "|" the name of the oneof it belongs to. A type in capitals is a
# message of the same package unless it has dots; "*" repeats, "%" is a map from strings. Enums are the numbers they are
# sent as.
_MESSAGES: dict[str, dict[str, tuple[str, ...]]] = {
    CORE: {
        "HeaderValue": ("1 key string", "2 value string", "3 raw_value bytes"),
        "HeaderValueOption": ("1 header HeaderValue", "3 append_action int32"),
        "HeaderMap": ("1 headers *HeaderValue",),
        "Metadata": (f"1 filter_metadata %{STRUCT}",),
    },
    HTTP: {"HttpStatus": ("1 code int32",)},
    MODES: {
        "ProcessingMode": (
            "1 request_header_mode int32",
            "2 response_header_mode int32",
            "3 request_body_mode int32",
            "4 response_body_mode int32",
            "5 request_trailer_mode int32",
            "6 response_trailer_mode int32",
        ),
    },
    PROC: {
        "ProtocolConfiguration": (
            "1 request_body_mode int32",
            "2 response_body_mode int32",
            "3 send_body_without_waiting_for_header_response bool",
        ),
        "ProcessingRequest": (
            "2 request_headers HttpHeaders|request",
            "3 response_headers HttpHeaders|request",
            "4 request_body HttpBody|request",
            "5 response_body HttpBody|request",
            "6 request_trailers HttpTrailers|request",
            "7 response_trailers HttpTrailers|request",
            f"8 metadata_context {CORE}.Metadata",
            f"9 attributes %{STRUCT}",
            "10 observability_mode bool",
            "11 protocol_config ProtocolConfiguration",
        ),
        "ProcessingResponse": (
            "1 request_headers HeadersResponse|response",
            "2 response_headers HeadersResponse|response",
            "3 request_body BodyResponse|response",
            "4 response_body BodyResponse|response",
            "5 request_trailers TrailersResponse|response",
            "6 response_trailers TrailersResponse|response",
            "7 immediate_response ImmediateResponse|response",
            f"8 dynamic_metadata {STRUCT}",
            f"9 mode_override {MODES}.ProcessingMode",
        ),
        "HttpHeaders": (f"1 headers {CORE}.HeaderMap", "3 end_of_stream bool"),
        "HttpBody": ("1 body bytes", "2 end_of_stream bool"),
        "HttpTrailers": (f"1 trailers {CORE}.HeaderMap",),
        "HeadersResponse": ("1 response CommonResponse",),
        "BodyResponse": ("1 response CommonResponse",),
        "TrailersResponse": ("1 header_mutation HeaderMutation",),
        "CommonResponse": (
            "1 status int32",
            "2 header_mutation HeaderMutation",
            "3 body_mutation BodyMutation",
            "5 clear_route_cache bool",
        ),
        "ImmediateResponse": (
            f"1 status {HTTP}.HttpStatus",
            "2 headers HeaderMutation",
            "3 body bytes",
            "5 details string",
        ),
        "HeaderMutation": (f"1 set_headers *{CORE}.HeaderValueOption", "2 remove_headers *string"),
        "StreamedBodyResponse": ("1 body bytes", "2 end_of_stream bool"),
        "BodyMutation": (
            "1 body bytes|mutation",
            "2 clear_body bool|mutation",
            "3 streamed_response StreamedBodyResponse|mutation",
        ),
    },
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
}


def _add_field(message: Any, package: str, line: str) -> None:
    text, _, oneof = line.partition("|")
    number, name, kind = text.split()
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if oneof:
        if not message.oneof_decl:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = 0
    if kind.startswith("%"):
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        entry.field.add(
            name="value", number=2, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_MESSAGE, type_name=f".{kind[1:]}"
        )
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{message.name}.{entry.name}"
        return
    if kind.startswith("*"):
        field.label, kind = _Field.LABEL_REPEATED, kind[1:]
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type, field.type_name = _Field.TYPE_MESSAGE, f".{kind if '.' in kind else f'{package}.{kind}'}"


def _build_pool() -> DescriptorPool:
    pool = DescriptorPool()
    struct = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(struct)
    pool.Add(struct)
    before = [struct.name]
    for package, messages in _MESSAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"cachelb/{package}", package=package, syntax="proto3")
        file.dependency.extend(before)
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for line in fields:
                _add_field(message, package, line)
        pool.Add(file)
        before.append(file.name)
    return pool


_POOL = _build_pool()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


ProcessingRequest = _message(f"{PROC}.ProcessingRequest")
ProcessingResponse = _message(f"{PROC}.ProcessingResponse")
