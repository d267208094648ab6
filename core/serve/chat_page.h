// The chat page: one HTML document that asks the server which it came from, and nothing else.
#pragma once
#include <string>

namespace fvlm::serve {

struct ChatPage {
  std::string html;
  // Its Content-Security-Policy, which lets the browser run the page's own script and no other, and send requests to
  // the server alone.
  std::string policy;
};

const ChatPage& chat_page();

} // namespace fvlm::serve
