// RequestGuard: which requests are answered at all. A page that is open in the user's browser can send requests to any
// address of the user's machine, so the browser's own headers have to say that the request is not such a page's.
#pragma once
#include "http/http_server.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

class RequestGuard {
 public:
  // `hosts`: names by which the server may be called besides localhost and IP addresses. `origins`: those of pages
  // elsewhere that may ask, such as https://example.com; * stands for all. Throws Error(usage) for what is none.
  RequestGuard(std::vector<std::string> hosts, std::vector<std::string> origins);

  struct Refusal {
    int status;
    std::string why;
  };
  // Refuses a Host that is another's name (DNS rebinding), an Origin that is neither the server's own nor listed, and
  // bodies of other types than JSON, which forms of other pages may send without asking.
  std::optional<Refusal> check(const HttpRequest& request) const;
  bool is_listed(const std::string& origin) const;
  bool allows_any_origin() const;

 private:
  std::vector<std::string> hosts_, origins_;
};

// In a time that does not depend on how many letters are right.
bool is_same_secret(std::string_view given, std::string_view expected);

} // namespace fvlm
