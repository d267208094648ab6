#include "serve/api_server.h"

#include "base/log.h"
#include "base/task_thread.h"
#include "serve/chat_page.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <random>
#include <utility>

namespace fvlm::serve {
namespace {

constexpr const char* json_type = "application/json";
// A body with a picture takes a millisecond to parse, and up to seconds, in which the server's thread would send nobody
// a token.
constexpr size_t small_body = size_t{16} << 10, large_body = size_t{1} << 20;

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

int status_of(const Error& error) {
  return error.kind() == ErrorKind::usage || error.kind() == ErrorKind::data ? 400
         : error.kind() == ErrorKind::stopped                                ? 503
                                                                             : 500;
}

std::string document_of(const Error& error) {
  const std::string message =
      error.advice().empty() ? error.what() : fmt::format("{}: {}", error.what(), error.advice());
  return error_json(message, status_of(error) == 400 ? "invalid_request_error" : "server_error", error.where());
}

std::string only_model(const ApiSettings& settings) {
  return fmt::format("this server has the model '{}'", settings.model_name);
}

// Clients escape a name in a path ("my model" as my%20model). What is no escape stays as it is.
std::string unescaped(std::string_view path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    unsigned char code = 0;
    const char* const digits = path.data() + i + 1;
    const bool is_escape =
        path[i] == '%' && path.size() - i > 2 && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2;
    text += is_escape ? static_cast<char>(code) : path[i];
    if (is_escape) i += 2;
  }
  return text;
}

void refuse(HttpResponse& response, int status, const std::string& why, const char* type = "invalid_request_error") {
  response.send(status, json_type, error_json(why, type));
}

void fail(HttpResponse& response, const std::exception& error) {
  log_error("a request failed: {}", error.what());
  refuse(response, 500, "a defect of the server; its log says more", "server_error");
}

// Sends the answers of one request, whole or as a stream of events.
class Conversation final : public AnswerListener {
 public:
  Conversation(const ChatRequest& request, AnswerJson json, std::shared_ptr<HttpResponse> response)
      : json_(std::move(json)), response_(std::move(response)), answers_(static_cast<size_t>(request.answers)),
        first_(answers_.size(), 1), streams_(request.stream), streams_usage_(request.stream_usage) {}

  void show_attention(const FrameAttention& attention) override {
    if (streams_)
      write(json_.attention(attention));
    else
      json_.keep_attention(attention);
  }
  void add_token(int64_t answer, const TokenLogprob& token) override {
    answers_[static_cast<size_t>(answer)].tokens.push_back(token);
  }
  void add_text(int64_t answer, const std::string& piece) override {
    AnswerText& text = answers_[static_cast<size_t>(answer)];
    if (!streams_) {
      text.text += piece;
      return;
    }
    const bool first = std::exchange(first_[static_cast<size_t>(answer)], 0) != 0;
    write(json_.piece(answer, piece, first, std::exchange(text.tokens, {})));
  }
  void end_answer(int64_t answer, const char* finish) override {
    if (streams_)
      write(json_.last_piece(answer, finish));
    else
      answers_[static_cast<size_t>(answer)].finish = finish;
  }
  void complete(const Usage& usage) override {
    if (!streams_) return response_->send(200, json_type, json_.whole(answers_, usage));
    write((streams_usage_ ? json_.usage(usage) : "") + AnswerJson::end_of_stream());
    response_->end();
  }
  void fail(const Error& error) override {
    if (!begun_) return response_->send(status_of(error), json_type, document_of(error));
    response_->write("data: " + document_of(error) + "\n\n");
    response_->end();
  }
  bool is_abandoned() const override { return response_->is_abandoned(); }

 private:
  void write(std::string event) {
    if (!std::exchange(begun_, true)) response_->begin("text/event-stream; charset=utf-8");
    response_->write(std::move(event));
  }

  AnswerJson json_;
  std::shared_ptr<HttpResponse> response_;
  std::vector<AnswerText> answers_;
  std::vector<uint8_t> first_; // whether nothing of an answer was sent yet
  bool streams_, streams_usage_, begun_ = false;
};

} // namespace

HttpRefusal json_refusal(int status, const std::string& why) {
  return {json_type, error_json(why, status < 500 ? "invalid_request_error" : "server_error")};
}

ApiServer::ApiServer(AnswerService& service, ApiSettings settings, RequestGuard guard)
    : service_(service), settings_(std::move(settings)), guard_(std::move(guard)), started_(seconds_now()) {
  std::random_device device;
  run_id_ = fmt::format("{:08x}", device());
}

void ApiServer::handle(HttpRequest request, std::shared_ptr<HttpResponse> response) {
  try {
    route(std::move(request), response);
  } catch (const std::exception& error) {
    fail(*response, error);
  }
}

void ApiServer::stop() {
  parsers_.reset();
}

void ApiServer::route(HttpRequest request, const std::shared_ptr<HttpResponse>& response) {
  const bool gets = request.method == "GET", posts = request.method == "POST";
  const std::string& path = request.path;
  if (guard_.is_listed(request.origin)) {
    response->add_header("Access-Control-Allow-Origin", request.origin);
    response->add_header("Vary", "Origin");
    if (request.method == "OPTIONS") { // a browser asks whether the page may ask
      response->add_header("Access-Control-Allow-Methods", "GET, POST");
      response->add_header("Access-Control-Allow-Headers", "Authorization, *");
      return response->send(204, json_type, "");
    }
  }
  if (const auto refusal = guard_.check(request)) return refuse(*response, refusal->status, refusal->why);
  if (path == "/health" && gets) return response->send(200, json_type, "{\"status\":\"ok\"}");
  if (path == "/" && gets) { // it asks for the token itself
    response->add_header("Content-Security-Policy", chat_page().policy);
    response->add_header("X-Frame-Options", "DENY");
    return response->send(200, "text/html; charset=utf-8", chat_page().html);
  }
  if (!settings_.token.empty() && !is_same_secret(request.authorization, "Bearer " + settings_.token)) {
    response->add_header("WWW-Authenticate", "Bearer");
    return refuse(*response, 401, "this server wants the header 'Authorization: Bearer TOKEN' with its token",
                  "authentication_error");
  }
  const bool chat = path == "/v1/chat/completions", completion = path == "/v1/completions";
  if ((chat || completion) && posts) return answer(std::move(request.body), response, chat);
  if (path == "/v1/models" && gets) return response->send(200, json_type, models());
  if (unescaped(path) == "/v1/models/" + settings_.model_name && gets)
    return response->send(200, json_type, model().dump());
  if (path == "/metrics" && gets) return response->send(200, "text/plain; version=0.0.4", metrics());
  if (path.starts_with("/v1/models/") && gets) return refuse(*response, 404, only_model(settings_), "not_found_error");
  for (const char* known : {"/", "/health", "/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics"})
    if (path == known)
      return refuse(*response, 405, fmt::format("{} takes {}", path, chat || completion ? "POST" : "GET"));
  refuse(*response, 404, "there is no such path; see /v1/models and /v1/chat/completions", "not_found_error");
}

void ApiServer::answer(std::string body, const std::shared_ptr<HttpResponse>& response, bool is_chat) {
  if (body.size() <= small_body) return parse(body, response, is_chat);
  ++unparsed_;
  (body.size() <= large_body ? parsers_->requests : parsers_->large_requests)
      .give([this, body = std::move(body), response, is_chat] {
        try {
          if (!response->is_abandoned()) parse(body, response, is_chat);
        } catch (const std::exception& error) { // out of memory, for example
          fail(*response, error);
        }
        --unparsed_;
      });
}

void ApiServer::parse(const std::string& body, const std::shared_ptr<HttpResponse>& response, bool is_chat) {
  try {
    ChatRequest request = is_chat ? parse_chat(body, settings_.requests) : parse_completion(body, settings_.requests);
    if (!request.model.empty() && request.model != settings_.model_name)
      return response->send(404, json_type, error_json(only_model(settings_), "invalid_request_error", "model"));
    if (request.attention && !settings_.has_attention)
      throw Error(ErrorKind::usage, "attention: the connector of this model attends to nothing").at("attention");
    request.model = settings_.model_name;
    const std::string id = fmt::format("{}-{}-{}", is_chat ? "chatcmpl" : "cmpl", run_id_, requests_++);
    auto listener = std::make_shared<Conversation>(request, AnswerJson(request, id, seconds_now()), response);
    if (!service_.submit(std::move(request), std::move(listener))) {
      response->add_header("Retry-After", "1");
      refuse(*response, 429, "too many requests wait; try again later", "rate_limit_error");
    }
  } catch (const Error& error) {
    response->send(status_of(error), json_type, document_of(error));
  }
}

nlohmann::json ApiServer::model() const {
  return {{"id", settings_.model_name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "fvlm-engine"},
          {"fvlm", // an extension: what a request may hold
           {{"attention", settings_.has_attention},
            {"max_images", settings_.requests.most_images},
            {"max_tokens", settings_.requests.most_tokens},
            {"usual_tokens", settings_.usual_tokens},
            {"video_frames", settings_.video_frames},
            {"video_part", settings_.video_is_part}}}};
}

std::string ApiServer::models() const {
  return nlohmann::json{{"object", "list"}, {"data", nlohmann::json::array({model()})}}.dump();
}

std::string ApiServer::metrics() const {
  const ServiceCounts counts = service_.counts();
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help, int64_t value) {
    text += fmt::format("# HELP fvlm_{0} {2}\n# TYPE fvlm_{0} {1}\nfvlm_{0} {3}\n", name, type, help, value);
  };
  add("requests_waiting", "gauge", "Requests whose answers have not begun.", counts.waiting + unparsed_);
  add("requests_running", "gauge", "Requests that are being answered.", counts.answering);
  add("requests_answered_total", "counter", "Requests that were answered.", counts.answered);
  add("requests_failed_total", "counter", "Requests that failed.", counts.failed);
  add("requests_abandoned_total", "counter", "Requests whose clients left.", counts.abandoned);
  add("prompt_tokens_total", "counter", "Rows of prompts, visual ones included.", counts.prompt_tokens);
  add("generated_tokens_total", "counter", "Tokens of answers.", counts.generated_tokens);
  add("cache_pages", "gauge", "Pages of the cache of keys and values.", counts.cache.pages);
  add("cache_pages_free", "gauge", "Pages that hold nothing.", counts.cache.free_pages);
  add("cache_pages_cached", "gauge", "Pages of ended answers that prompts can share.", counts.cache.cached_pages);
  add("cache_shared_tokens_total", "counter", "Rows of prompts that were found in pages.", counts.cache.shared_rows);
  add("preemptions_total", "counter", "Times that an answer gave its pages to an older one.", counts.cache.preemptions);
  add("draft_tokens_total", "counter", "Tokens that speculation proposed.", counts.drafts.proposed);
  add("draft_tokens_accepted_total", "counter", "Proposed tokens that were right.", counts.drafts.accepted);
  add("steps_total", "counter", "Passes of the decoder.", counts.steps);
  const auto add_seconds = [&](const char* name, const char* help, const char* label, const auto& seconds) {
    text += fmt::format("# HELP fvlm_{0} {1}\n# TYPE fvlm_{0} counter\n", name, help);
    for (const auto& [value, one] : seconds)
      text += fmt::format("fvlm_{}{{{}=\"{}\"}} {:.6f}\n", name, label, value, one);
  };
  using Seconds = std::vector<std::pair<const char*, double>>;
  const auto &reading = counts.reading, &decoding = counts.decoding;
  add("reading_steps_total", "counter", "Those that read prompts.", reading.steps);
  add_seconds("model_seconds_total", "Time of the model's thread; device: of steps, waiting for it.", "work",
              Seconds{{"waiting", counts.waiting_seconds},
                      {"encoding", counts.encoding_seconds},
                      {"reading", reading.seconds - reading.device_seconds},
                      {"reading_device", reading.device_seconds},
                      {"decoding", decoding.seconds - decoding.device_seconds},
                      {"decoding_device", decoding.device_seconds}});
  const AnswerService::CpuSeconds threads = service_.cpu_seconds();
  add_seconds("cpu_seconds_total", "Processor time of threads; server: connections and small requests.", "thread",
              Seconds{{"server", cpu_seconds()},
                      {"prompts", threads.prompts},
                      {"model", threads.model},
                      {"delivery", threads.delivery}});
  return text;
}

} // namespace fvlm::serve
