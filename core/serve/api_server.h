// ApiServer: the routes of `fvlm-engine serve`, OpenAI's API and a little of vLLM's in front of an AnswerService.
#pragma once
#include "data/stream/thread_pool.h"
#include "http/http_server.h"
#include "http/request_guard.h"
#include "serve/answer_service.h"
#include "serve/request_fields.h"

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fvlm::serve {

struct ApiSettings {
  std::string model_name;
  std::vector<std::string> adapters; // of the model, by the names that requests call them; see infer::Prompt
  std::string token;                 // that clients must present; empty: none
  RequestLimits requests;
  int64_t usual_tokens = 512; // of an answer whose request sets no max_tokens
  bool has_attention = false; // whether the model can show where it looks
  int64_t video_frames = 64;  // that clients should take of a video at most; 0: the model reads none
  bool video_is_part = false; // of type video, in place of an image_url for each frame
  int64_t positions = 0;      // of the decoder: tokens of a prompt and its answer
  int64_t width = 0;          // of its hidden states
};

// In the form of OpenAI's errors.
HttpRefusal json_refusal(int status, const std::string& why);
// Status 429: as many requests wait as may.
void refuse_for_now(HttpResponse& response);

class ApiServer {
 public:
  // Both must outlive it.
  ApiServer(AnswerService& service, const PromptWriter& prompts, ApiSettings settings, RequestGuard guard);

  // As an HttpHandler. Requests with pictures are parsed on other threads.
  void handle(HttpRequest request, std::shared_ptr<HttpResponse> response);
  // Drops the requests that are not parsed yet, and ends these threads. To be called while the HttpServer exists.
  void stop();

 private:
  void route(HttpRequest request, const std::shared_ptr<HttpResponse>& response);
  // A browser does not show why it may not ask. Once for each reason, and a few of them.
  void warn_of_refused_page(const std::string& why);
  void post(HttpRequest request, const std::shared_ptr<HttpResponse>& response);
  void read(const HttpRequest& request, const std::shared_ptr<HttpResponse>& response);
  void answer(std::vector<ChatRequest> prompts, ApiForm form, const std::shared_ptr<HttpResponse>& response);
  void embed(std::vector<ChatRequest> inputs, const std::shared_ptr<HttpResponse>& response);
  void tokenize(const ChatRequest& request, HttpResponse& response) const;
  void count_tokens(const ChatRequest& request, HttpResponse& response) const;
  void detokenize(const ChatRequest& request, HttpResponse& response) const;
  // The adapter of this name; 0: that of the model. Nothing for others.
  std::optional<size_t> adapter_of(const std::string& name) const;
  // The same for a request, which need not name any. Sends why not.
  std::optional<size_t> requested_adapter(const ChatRequest& request, HttpResponse& response) const;
  const std::string& name_of(size_t adapter) const;
  nlohmann::json model(size_t adapter) const;
  std::string models() const;
  std::string metrics() const;

  AnswerService& service_;
  const PromptWriter& prompts_;
  ApiSettings settings_;
  RequestGuard guard_;
  std::atomic<uint64_t> requests_{0};
  std::set<std::string> refused_pages_;
  int64_t started_;
  std::string run_id_;               // so that ids of answers differ between two runs of the server
  std::atomic<int64_t> unparsed_{0}; // requests that parsers_ has
  struct Parsers {
    ThreadPool requests{static_cast<int>(prompt_threads())};
    ThreadPool large_requests{1}; // one, since a document takes many times the memory of its text
  };
  std::unique_ptr<Parsers> parsers_;
};

} // namespace fvlm::serve
