// ApiServer: the routes of `fvlm-engine serve`, OpenAI's API in front of an AnswerService.
#pragma once
#include "serve/answer_service.h"
#include "serve/http_server.h"

#include <atomic>
#include <map>
#include <mutex>

namespace fvlm::serve {

struct ApiSettings {
  std::string model_name;
  std::string token; // that clients must present; empty: none
  RequestLimits requests;
};

class ApiServer {
 public:
  // The service must outlive it.
  ApiServer(AnswerService& service, ApiSettings settings);

  // As an HttpHandler.
  void handle(HttpRequest request, std::shared_ptr<HttpResponse> response);

 private:
  void answer(const HttpRequest& request, const std::shared_ptr<HttpResponse>& response, bool is_chat);
  std::string models() const;
  std::string metrics() const;

  AnswerService& service_;
  ApiSettings settings_;
  std::atomic<uint64_t> requests_{0};
  int64_t started_;
  std::string run_id_; // so that ids of answers differ between two runs of the server
};

} // namespace fvlm::serve
