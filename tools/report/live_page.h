// LivePage: the report of a run over HTTP, for a browser that follows the run while it trains.
#pragma once
#include "http/http_server.h"
#include "http/request_guard.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>

namespace fvlm::report {

class LivePage {
 public:
  struct Options {
    std::string host = "127.0.0.1"; // an address of this machine
    uint16_t port = 0;              // 0: any free one
    std::string password;           // that a browser asks for; empty: whoever reaches the address may look
    std::function<void()> stop;     // asks the run to stop; empty: it cannot be asked. Called on the server's thread
  };
  // Listens at once. Throws as HttpServer does.
  LivePage(std::filesystem::path run, Options options);

  std::string url() const;
  void serve(); // until end()
  void end();   // [any thread, also a signal handler's]

 private:
  void handle(const HttpRequest& request, HttpResponse& response);
  void answer(const std::string& path, HttpResponse& response);
  const std::string& page();
  std::string version() const; // of the run
  bool is_due(const std::string& version) const;
  std::string state() const;

  std::filesystem::path run_;
  Options options_;
  RequestGuard guard_{{}, {}};
  std::string page_, page_version_;
  std::chrono::steady_clock::time_point made_;
  std::chrono::steady_clock::duration making_{}; // how long the last one took
  HttpServer server_;
};

} // namespace fvlm::report
