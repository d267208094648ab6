#include "serve/chat_page.h"

#include "base/error.h"
#include "http/page_policy.h"

#include <fmt/format.h>

#include <string_view>

namespace fvlm::serve {

extern const std::string_view page_html, page_css, page_js, media_js; // of page/, by fvlm_embed()

namespace {

void fill(std::string& page, std::string_view mark, std::string_view text) {
  const size_t at = page.find(mark);
  if (at == std::string::npos) throw Error(ErrorKind::internal, "the chat page has no {}", mark);
  page.replace(at, mark.size(), text);
}

} // namespace

const ChatPage& chat_page() {
  static const ChatPage page = [] {
    const std::string script = fmt::format("\n{}{}", media_js, page_js), style = fmt::format("\n{}", page_css);
    ChatPage made{
        std::string(page_html),
        fmt::format("default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data: blob:; "
                    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                    policy_source(script), policy_source(style))};
    fill(made.html, "{{style}}", style);
    fill(made.html, "{{script}}", script);
    return made;
  }();
  return page;
}

} // namespace fvlm::serve
