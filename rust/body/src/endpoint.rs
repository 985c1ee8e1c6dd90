//! The kind of body that a path takes.

/// How the body of an endpoint is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `OpenAI`'s chat completions.
    Chat,
    /// `OpenAI`'s completions: texts or token ids.
    Completions,
    /// `OpenAI`'s responses.
    Responses,
    /// Anthropic's messages, also as Bedrock and Vertex name them.
    Messages,
    /// vLLM's and `SGLang`'s `generate`: ids or texts.
    Generate,
    /// Embeddings, scores and ranks: nothing is generated, so nothing is cached behind the prompt.
    Pooling,
    /// Renders, tokenizes or counts; no model runs.
    LoadOnly,
    /// Multipart audio, counted by bytes.
    Audio,
    /// Any other.
    Unknown,
}

/// Ends of paths; of two that match, the first counts.
const PATHS: [(&str, Endpoint); 22] = [
    ("/render", Endpoint::LoadOnly),
    ("/count_tokens", Endpoint::LoadOnly),
    ("/tokenize", Endpoint::LoadOnly),
    ("/detokenize", Endpoint::LoadOnly),
    ("/chat/completions", Endpoint::Chat),
    ("/completions", Endpoint::Completions),
    ("/responses", Endpoint::Responses),
    ("/messages", Endpoint::Messages),
    (":rawPredict", Endpoint::Messages),
    (":streamRawPredict", Endpoint::Messages),
    ("/invoke", Endpoint::Messages),
    ("/invoke-with-response-stream", Endpoint::Messages),
    ("/generate", Endpoint::Generate),
    ("/generate_stream", Endpoint::Generate),
    ("/embeddings", Endpoint::Pooling),
    ("/embed", Endpoint::Pooling),
    ("/pooling", Endpoint::Pooling),
    ("/classify", Endpoint::Pooling),
    ("/score", Endpoint::Pooling),
    ("/rerank", Endpoint::Pooling),
    ("/audio/transcriptions", Endpoint::Audio),
    ("/audio/translations", Endpoint::Audio),
];

/// The APIs of chats, whose messages engines convert each in its own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Api {
    /// Chat completions.
    #[default]
    Chat,
    /// Responses.
    Responses,
    /// Anthropic's messages.
    Messages,
}

impl Api {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Chat, Self::Responses, Self::Messages];
}

impl From<Endpoint> for Api {
    fn from(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Responses => Self::Responses,
            Endpoint::Messages => Self::Messages,
            _ => Self::Chat,
        }
    }
}

impl Endpoint {
    /// The endpoint of a path, by its end; a query does not count.
    #[must_use]
    pub fn of(path: &str) -> Self {
        let end = path.bytes().position(|byte| matches!(byte, b'?' | b'#'));
        let path = &path[..end.unwrap_or(path.len())];
        let path = path.strip_suffix('/').unwrap_or(path);
        PATHS
            .iter()
            .find(|(end, _)| path.ends_with(end))
            .map_or(Self::Unknown, |(_, endpoint)| *endpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_by_their_end() {
        let rows = [
            ("/v1/chat/completions", Endpoint::Chat),
            (
                "/openai/deployments/x/chat/completions?api-version=1",
                Endpoint::Chat,
            ),
            ("/v1/chat/completions/", Endpoint::Chat),
            ("/v1/completions", Endpoint::Completions),
            ("/v1/chat/completions/render", Endpoint::LoadOnly),
            ("/v1/messages/count_tokens", Endpoint::LoadOnly),
            ("/v1/responses", Endpoint::Responses),
            ("/v1/messages", Endpoint::Messages),
            ("/model/anthropic.claude/invoke", Endpoint::Messages),
            (
                "/v1/projects/p/models/claude:rawPredict",
                Endpoint::Messages,
            ),
            ("/inference/v1/generate", Endpoint::Generate),
            ("/generate", Endpoint::Generate),
            ("/v1/embeddings", Endpoint::Pooling),
            ("/v2/rerank", Endpoint::Pooling),
            ("/v1/audio/transcriptions", Endpoint::Audio),
            ("/v1/models", Endpoint::Unknown),
            ("/x?y=/v1/messages", Endpoint::Unknown),
            ("", Endpoint::Unknown),
        ];
        for (path, endpoint) in rows {
            assert_eq!(Endpoint::of(path), endpoint, "{path}");
        }
    }
}
