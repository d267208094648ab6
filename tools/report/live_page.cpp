#include "report/live_page.h"

#include "base/base64.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/text.h"
#include "report/page.h"
#include "report/page_layout.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fvlm::report {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t log_bytes = 32 << 10; // of the log's end
constexpr auto making_share = 20;       // a page is made anew after so many times as long as the last one took
constexpr const char* html_type = "text/html; charset=utf-8";

// The process that trains holds a lock (train/run_folder.h).
bool is_running(const fs::path& run) {
  const Descriptor file(open((run / "metrics.jsonl").c_str(), O_RDONLY | O_CLOEXEC));
  return file && flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

// Whole lines at the end of the log, without those for developers; none where there is no log.
std::string end_of_log(const fs::path& run) {
  const Descriptor file(open((run / "log.txt").c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) return "";
  const int64_t begin = std::max<int64_t>(0, info.st_size - log_bytes);
  std::string text(static_cast<size_t>(info.st_size - begin), '\0');
  const ssize_t read = pread(file.get(), text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read)));
  std::string lines;
  for (size_t at = begin == 0 ? 0 : text.find('\n') + 1, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
    if (const std::string_view line(text.data() + at, end + 1 - at); line.find(" debug: ") == line.npos) lines += line;
  return lines;
}

// The password of "Basic bmFtZTpwYXNzd29yZA==", whatever the name.
std::string password_of(const std::string& authorization) {
  if (!authorization.starts_with("Basic ")) return "";
  const auto pair = decode_base64(trimmed(authorization.substr(6)));
  const size_t colon = pair ? pair->find(':') : std::string::npos;
  return colon == std::string::npos ? "" : pair->substr(colon + 1);
}

std::string page_without_run(const fs::path& run, const Error& error) {
  return page_html_of({"Training report",
                       run.filename().string(),
                       "",
                       "",
                       {{"notes", "No report yet", notes_html({error.what()})}},
                       true});
}

} // namespace

LivePage::LivePage(fs::path run, Options options)
    : run_(std::move(run)), options_(std::move(options)),
      server_(options_.host, options_.port, HttpLimits{.body_bytes = 4096, .connections = 64},
              [this](const HttpRequest& request, const std::shared_ptr<HttpResponse>& response) {
                handle(request, *response);
              }) {
  server_.listen();
}

std::string LivePage::url() const {
  const bool is_ipv6 = options_.host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}/", is_ipv6 ? "[" + options_.host + "]" : options_.host, server_.port());
}

void LivePage::serve() {
  server_.run(std::chrono::seconds(1));
}

void LivePage::end() {
  server_.stop();
}

void LivePage::handle(const HttpRequest& request, HttpResponse& response) {
  const auto refuse = [&](int status, const std::string& why) { response.send(status, "text/plain", why + "\n"); };
  response.add_header("X-Content-Type-Options", "nosniff");
  response.add_header("Cache-Control", "no-store");
  if (const auto refusal = guard_.check(request)) return refuse(refusal->status, refusal->why);
  if (!options_.password.empty() && !is_same_secret(password_of(request.authorization), options_.password)) {
    response.add_header("WWW-Authenticate", "Basic realm=\"fvlm-engine\"");
    return refuse(401, "enter this page's password; any user name will do");
  }
  const bool stops = request.path == "/stop";
  if (request.path != "/" && request.path != "/state" && !stops) return refuse(404, "there is no such path");
  if (request.method != (stops ? "POST" : "GET"))
    return refuse(405, fmt::format("{} takes {}", request.path, stops ? "POST" : "GET"));
  try {
    answer(request.path, response);
  } catch (const std::exception& error) {
    refuse(500, error.what());
  }
}

void LivePage::answer(const std::string& path, HttpResponse& response) {
  if (path == "/state") return response.send(200, "application/json", state());
  if (path == "/") {
    response.add_header("Content-Security-Policy", live_page_policy());
    return response.send(200, html_type, page());
  }
  if (!options_.stop) return response.send(409, "text/plain", "this process does not train the run\n");
  options_.stop();
  response.send(200, "application/json", "{}");
}

// Making one reads all of the metrics, so that a long run's page lags a little.
const std::string& LivePage::page() {
  const std::string now = version();
  if (!is_due(now)) return page_;
  const auto begin = Clock::now();
  try {
    page_ = live_report(run_);
  } catch (const Error& error) {
    page_ = page_without_run(run_, error);
  }
  page_version_ = now;
  made_ = Clock::now();
  making_ = made_ - begin;
  return page_;
}

bool LivePage::is_due(const std::string& version) const {
  return page_.empty() || (version != page_version_ && Clock::now() >= made_ + making_share * making_);
}

// Another one when metrics were written.
std::string LivePage::version() const {
  struct stat info {};
  if (stat((run_ / "metrics.jsonl").c_str(), &info) != 0) return "";
  return fmt::format("{}-{}.{}", info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

std::string LivePage::state() const {
  const std::string now = version();
  const nlohmann::json state{{"version", is_due(now) ? now : page_version_}, // of the page as it would be now
                             {"is_running", is_running(run_)},
                             {"can_stop", static_cast<bool>(options_.stop)},
                             {"log", end_of_log(run_)}};
  return state.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace fvlm::report
