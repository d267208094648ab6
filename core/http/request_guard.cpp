#include "http/request_guard.h"

#include "base/error.h"
#include "base/text.h"

#include <boost/asio/ip/address.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

// The name of a Host header, without its port.
std::string name_of(const std::string& host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool is_address(const std::string& name) {
  boost::system::error_code error;
  boost::asio::ip::make_address(name, error);
  return !error;
}

// Scheme and host, as browsers and desktop programs send them: https://example.com, chrome-extension://ID, app://name.
bool is_origin(std::string_view text) {
  const size_t end = text.find("://");
  if (end == 0 || end == std::string_view::npos) return false;
  const std::string_view scheme = text.substr(0, end), host = text.substr(end + 3);
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return is_letter(scheme.front()) &&
         std::ranges::all_of(
             scheme,
             [&](char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '.' || c == '-'; }) &&
         !host.empty() && host.find_first_of("/ ,'\"") == std::string_view::npos;
}

} // namespace

RequestGuard::RequestGuard(std::vector<std::string> hosts, std::vector<std::string> origins)
    : hosts_(std::move(hosts)), origins_(std::move(origins)) {
  for (std::string& host : hosts_) {
    if (host.empty() || host.find_first_of(":/ ") != std::string::npos)
      throw Error(ErrorKind::usage, "--allow-host: '{}' is no host name", host)
          .advise("give the name alone: --allow-host gpu.example.com");
    host = lower_case(host);
  }
  for (std::string& origin : origins_) {
    if (origin == "*") continue;
    if (!is_origin(lower_case(origin)))
      throw Error(ErrorKind::usage, "--allow-origin: '{}' is no origin", origin)
          .advise("give scheme and host, without a path: --allow-origin https://example.com");
    origin = lower_case(origin);
  }
}

bool RequestGuard::is_listed(const std::string& origin) const {
  return !origin.empty() && (allows_any_origin() || std::ranges::find(origins_, lower_case(origin)) != origins_.end());
}

bool RequestGuard::allows_any_origin() const {
  return std::ranges::find(origins_, "*") != origins_.end();
}

std::optional<RequestGuard::Refusal> RequestGuard::check(const HttpRequest& request) const {
  const std::string host = lower_case(request.host), name = name_of(host);
  const bool is_known = host.empty() || name == "localhost" || name.ends_with(".localhost") || is_address(name) ||
                        std::ranges::find(hosts_, name) != hosts_.end();
  if (!is_known)
    return Refusal{421, fmt::format("this server is not known as '{0}'; --allow-host {0} lets it be", name)};
  const std::string origin = lower_case(request.origin);
  if (!origin.empty() && !is_listed(origin) &&
      (host.empty() || (origin != "http://" + host && origin != "https://" + host)))
    return Refusal{403, fmt::format("pages of '{}' may not ask this server; {}", origin,
                                    is_origin(origin) ? fmt::format("--allow-origin {} lets them", origin)
                                                      : "that is no origin which --allow-origin could name: serve the "
                                                        "page over HTTP")};
  const std::string type = lower_case(trimmed(request.content_type.substr(0, request.content_type.find(';'))));
  if (request.method == "POST" && type != "application/json")
    return Refusal{415, fmt::format("expected Content-Type: application/json, got '{}'; curl --json sends it", type)};
  return std::nullopt;
}

bool is_same_secret(std::string_view given, std::string_view expected) {
  uint8_t differs = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    differs |= static_cast<uint8_t>(given[i] ^ expected[expected.empty() ? 0 : i % expected.size()]);
  return differs == 0;
}

} // namespace fvlm
