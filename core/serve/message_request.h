// Requests in the form of Anthropic's /v1/messages.
#pragma once
#include "serve/chat_request.h"

#include <string_view>

namespace fvlm::serve {

// Read as the same request to /v1/chat/completions. Throws Error(usage) at the field for what has no place there.
ChatRequest parse_message(std::string_view body, const RequestLimits& limits);

} // namespace fvlm::serve
