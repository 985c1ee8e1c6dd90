//! The messages of Envoy's external processing protocol, by short names. All of this crate takes them from here.

pub(crate) use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
pub(crate) use envoy_types::pb::envoy::config::core::v3::{
    HeaderMap, HeaderValue, HeaderValueOption,
};
pub(crate) use envoy_types::pb::envoy::extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode;
pub(crate) use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
pub(crate) use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::{
    ExternalProcessor, ExternalProcessorServer,
};
pub(crate) use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Part;
pub(crate) use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as ReplyPart;
pub(crate) use envoy_types::pb::envoy::service::ext_proc::v3::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, HttpBody,
    HttpHeaders, ImmediateResponse, ProcessingRequest as Message, ProcessingResponse as Reply,
    StreamedBodyResponse, TrailersResponse,
};
pub(crate) use envoy_types::pb::envoy::r#type::v3::HttpStatus;
pub(crate) use envoy_types::pb::google::protobuf::value::Kind;
pub(crate) use envoy_types::pb::google::protobuf::{Struct, Value};

/// Full name of the service, which is also the name of its health check.
pub(crate) const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

#[cfg(test)]
pub(crate) use envoy_types::pb::envoy::service::ext_proc::v3::HttpTrailers;
#[cfg(test)]
pub(crate) use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
