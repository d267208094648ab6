// Content-Security-Policy of pages whose scripts and style sheets stand in the page itself.
#pragma once
#include <string>
#include <string_view>

namespace fvlm {

// 'sha256-...', by which a policy allows an inline script or style sheet of exactly this text.
std::string policy_source(std::string_view text);

} // namespace fvlm
