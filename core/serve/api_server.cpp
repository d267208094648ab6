#include "serve/api_server.h"

#include "base/log.h"
#include "base/task_thread.h"
#include "base/terminal.h"
#include "base/text.h"
#include "serve/chat_page.h"
#include "serve/embedding_answers.h"
#include "serve/message_json.h"
#include "serve/message_request.h"
#include "serve/response_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <mutex>
#include <random>
#include <string_view>
#include <utility>

namespace fvlm::serve {
namespace {

constexpr const char *tokenize_path = "/tokenize", *detokenize_path = "/detokenize",
                     *embeddings_path = "/v1/embeddings", *messages_path = "/v1/messages",
                     *count_path = "/v1/messages/count_tokens";
constexpr std::string_view models_path = "/v1/models/";
// A body with a picture takes a millisecond to parse, and up to seconds, in which the server's thread would send nobody
// a token.
constexpr size_t small_body = size_t{16} << 10, large_body = size_t{1} << 20;

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string known_models(const ApiSettings& settings) {
  const std::string model = fmt::format("this server has the model '{}'", settings.model_name);
  return settings.adapters.empty() ? model : model + " with the adapters '" + join(settings.adapters, "', '") + "'";
}

// As Prometheus has the value of a label.
std::string escaped_label(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '\\' || letter == '"') escaped += '\\';
    escaped += letter == '\n' ? std::string("\\n") : std::string(1, letter);
  }
  return escaped;
}

std::optional<ApiForm> form_of(const std::string& path) {
  if (path == "/v1/chat/completions") return ApiForm::chat;
  if (path == "/v1/completions") return ApiForm::completion;
  if (path == "/v1/responses") return ApiForm::response;
  if (path == messages_path) return ApiForm::message;
  return {};
}

std::vector<ChatRequest> prompts_of(const std::string& body, ApiForm form, const RequestLimits& limits) {
  if (form == ApiForm::completion) return parse_completions(body, limits);
  if (form == ApiForm::message) return {parse_message(body, limits)};
  return {form == ApiForm::chat ? parse_chat(body, limits) : parse_response(body, limits)};
}

std::unique_ptr<AnswerDocuments> documents_for(const ChatRequest& request, ApiForm form, const std::string& id) {
  if (form == ApiForm::response) return std::make_unique<ResponseJson>(request, id, seconds_now());
  if (form == ApiForm::message) return std::make_unique<MessageJson>(request, id);
  return std::make_unique<AnswerJson>(request, (form == ApiForm::chat ? "chatcmpl-" : "cmpl-") + id, seconds_now());
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

void refuse_model(HttpResponse& response, const char* type, const ApiSettings& settings) {
  response.send(404, json_type, error_json(known_models(settings), type, "model", "model_not_found"));
}

void fail(HttpResponse& response, const std::exception& error) {
  log_error("a request failed: {}", error.what());
  refuse(response, 500, "a defect of the server; its log says more", "server_error");
}

// Sends the answers to all prompts of one request, whole or as a stream of events. [any thread]
class Conversation {
 public:
  Conversation(const std::vector<ChatRequest>& prompts, std::unique_ptr<AnswerDocuments> documents,
               std::shared_ptr<HttpResponse> response)
      : documents_(std::move(documents)), response_(std::move(response)),
        answers_(prompts.size() * static_cast<size_t>(prompts.front().answers)), first_(answers_.size(), 1),
        open_(prompts.size()), streams_(prompts.front().stream) {}

  void show_attention(const FrameAttention& attention) {
    std::lock_guard lock(lock_);
    if (streams_)
      write(documents_->attention(attention));
    else
      documents_->keep_attention(attention);
  }
  void add_token(int64_t answer, const TokenLogprob& token) {
    std::lock_guard lock(lock_);
    answers_[static_cast<size_t>(answer)].tokens.push_back(token);
  }
  void add_thoughts(int64_t answer, const std::string& piece) {
    std::lock_guard lock(lock_);
    if (streams_)
      write(documents_->thoughts(answer, piece, is_first(answer)));
    else
      answers_[static_cast<size_t>(answer)].thoughts += piece;
  }
  void add_text(int64_t answer, const std::string& piece) {
    std::lock_guard lock(lock_);
    if (streams_)
      write_piece(answer, piece);
    else
      answers_[static_cast<size_t>(answer)].text += piece;
  }
  void add_call(int64_t answer, const ToolCall& call) {
    std::lock_guard lock(lock_);
    if (!streams_) return answers_[static_cast<size_t>(answer)].calls.push_back(call);
    write(documents_->call(answer, call, is_first(answer)));
  }
  void end_answer(int64_t answer, const char* finish, const std::string& stop_text) {
    std::lock_guard lock(lock_);
    AnswerText& text = answers_[static_cast<size_t>(answer)];
    text.finish = finish;
    text.stop_text = stop_text;
    if (!streams_) return;
    if (!text.tokens.empty()) write_piece(answer, "");
    write(documents_->last_piece(answer, text));
  }
  void complete(const Usage& usage) {
    std::lock_guard lock(lock_);
    usage_.prompt += usage.prompt;
    usage_.completion += usage.completion;
    usage_.thoughts += usage.thoughts;
    usage_.cached += usage.cached;
    if (--open_ > 0 || failed_) return;
    if (!streams_) return response_->send(200, json_type, documents_->whole(answers_, usage_));
    write(documents_->end(usage_));
    response_->end();
  }
  // Of the first prompt that fails; the answers to the others are dropped.
  void fail(const Error& error) {
    std::lock_guard lock(lock_);
    --open_;
    if (failed_.exchange(true)) return;
    if (!begun_) return response_->send(http_status_of(error), json_type, error_json(error));
    response_->write(documents_->failure(error));
    response_->end();
  }
  void release_files() { response_->release_body(); }
  bool is_abandoned() const { return failed_ || response_->is_abandoned(); }

 private:
  bool is_first(int64_t answer) { return std::exchange(first_[static_cast<size_t>(answer)], 0) != 0; }
  void write_piece(int64_t answer, const std::string& piece) {
    const bool first = is_first(answer);
    write(documents_->piece(answer, piece, first, std::exchange(answers_[static_cast<size_t>(answer)].tokens, {})));
  }
  void write(std::string event) {
    if (failed_ || event.empty()) return;
    if (!std::exchange(begun_, true)) response_->begin("text/event-stream; charset=utf-8");
    response_->write(std::move(event));
  }

  std::unique_ptr<AnswerDocuments> documents_;
  std::shared_ptr<HttpResponse> response_;
  std::mutex lock_; // of what follows, since prompts may fail on several threads
  std::vector<AnswerText> answers_;
  std::vector<uint8_t> first_; // whether nothing of an answer was sent yet
  Usage usage_;
  size_t open_; // prompts whose answers have not ended
  bool streams_, begun_ = false;
  std::atomic<bool> failed_ = false;
};

// The answers to one of the prompts.
class PromptAnswers final : public AnswerListener {
 public:
  PromptAnswers(std::shared_ptr<Conversation> to, int64_t first) : to_(std::move(to)), first_(first) {}

  void show_attention(const FrameAttention& attention) override { to_->show_attention(attention); }
  void add_token(int64_t answer, const TokenLogprob& token) override { to_->add_token(first_ + answer, token); }
  void add_thoughts(int64_t answer, const std::string& piece) override { to_->add_thoughts(first_ + answer, piece); }
  void add_text(int64_t answer, const std::string& piece) override { to_->add_text(first_ + answer, piece); }
  void add_call(int64_t answer, const ToolCall& call) override { to_->add_call(first_ + answer, call); }
  void end_answer(int64_t answer, const char* finish, const std::string& stop_text) override {
    to_->end_answer(first_ + answer, finish, stop_text);
  }
  void complete(const Usage& usage) override { to_->complete(usage); }
  void fail(const Error& error) override { to_->fail(error); }
  void release_files() override { to_->release_files(); }
  bool is_abandoned() const override { return to_->is_abandoned(); }

 private:
  std::shared_ptr<Conversation> to_;
  int64_t first_; // number of its first answer
};

} // namespace

HttpRefusal json_refusal(int status, const std::string& why) {
  return {json_type, error_json(why, status < 500 ? "invalid_request_error" : "server_error")};
}

void refuse_for_now(HttpResponse& response) {
  response.add_header("Retry-After", "1");
  refuse(response, 429, "too many requests wait; try again later", "rate_limit_error");
}

ApiServer::ApiServer(AnswerService& service, const PromptWriter& prompts, ApiSettings settings, RequestGuard guard)
    : service_(service), prompts_(prompts), settings_(std::move(settings)), guard_(std::move(guard)),
      started_(seconds_now()), parsers_(std::make_unique<Parsers>()) {
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
    response->add_header("Access-Control-Expose-Headers", "Retry-After");
    response->add_header("Vary", "Origin");
    if (request.method == "OPTIONS") { // a browser asks whether the page may ask
      response->add_header("Access-Control-Allow-Methods", "GET, POST");
      response->add_header("Access-Control-Allow-Headers", "Authorization, *");
      response->add_header("Access-Control-Max-Age", "600");
      return response->send(204, json_type, "");
    }
  }
  if (const auto refusal = guard_.check(request)) {
    warn_of_refused_page(refusal->why);
    return refuse(*response, refusal->status, refusal->why);
  }
  if ((path == "/health" || path == "/ping") && gets) return response->send(200, json_type, "{\"status\":\"ok\"}");
  if (path == "/" && gets) { // it asks for the token itself
    response->add_header("Content-Security-Policy", chat_page().policy);
    response->add_header("X-Frame-Options", "DENY");
    return response->send(200, "text/html; charset=utf-8", chat_page().html);
  }
  if (!settings_.token.empty() && !is_same_secret(request.authorization, "Bearer " + settings_.token) &&
      !is_same_secret(request.api_key, settings_.token)) {
    response->add_header("WWW-Authenticate", "Bearer");
    return refuse(
        *response, 401,
        "the header 'Authorization: Bearer TOKEN', or 'x-api-key: TOKEN', with this server's token is missing "
        "or wrong",
        "authentication_error");
  }
  const bool takes_posts = form_of(path) || path == embeddings_path || path == tokenize_path ||
                           path == detokenize_path || path == count_path;
  if (takes_posts && posts) return post(std::move(request), response);
  if (path == "/v1/models" && gets) return response->send(200, json_type, models());
  if (path.starts_with(models_path) && gets) {
    const auto adapter = adapter_of(unescaped(path).substr(models_path.size()));
    if (!adapter) return refuse_model(*response, "not_found_error", settings_);
    return response->send(200, json_type, model(*adapter).dump());
  }
  if (path == "/version" && gets) return response->send(200, json_type, dumped({{"version", FVLM_VERSION}}));
  if (path == "/metrics" && gets) return response->send(200, "text/plain; version=0.0.4", metrics());
  if (path.starts_with("/v1/responses/"))
    return refuse(*response, 404, "this server keeps no responses; send the whole conversation as input of a new one",
                  "not_found_error");
  if (takes_posts) return refuse(*response, 405, path + " takes POST");
  for (const char* known : {"/", "/health", "/ping", "/version", "/v1/models", "/metrics"})
    if (path == known) return refuse(*response, 405, path + " takes GET");
  refuse(*response, 404, "there is no such path; see /v1/models and /v1/chat/completions", "not_found_error");
}

void ApiServer::warn_of_refused_page(const std::string& why) {
  constexpr size_t most = 8, longest = 300;
  if (refused_pages_.size() < most && refused_pages_.insert(why.substr(0, longest)).second)
    log_warning("a request is refused: {}", strip_control_characters(why.substr(0, longest)));
}

void ApiServer::post(HttpRequest request, const std::shared_ptr<HttpResponse>& response) {
  const size_t size = request.body.size();
  if (size <= small_body && form_of(request.path)) return read(request, response);
  ++unparsed_;
  (size <= large_body ? parsers_->requests : parsers_->large_requests)
      .give([this, request = std::move(request), response] {
        try {
          if (!response->is_abandoned()) read(request, response);
        } catch (const std::exception& error) { // out of memory, for example
          fail(*response, error);
        }
        --unparsed_;
      });
}

void ApiServer::read(const HttpRequest& request, const std::shared_ptr<HttpResponse>& response) {
  try {
    if (const auto form = form_of(request.path))
      answer(prompts_of(request.body, *form, settings_.requests), *form, response);
    else if (request.path == embeddings_path)
      embed(parse_embeddings(request.body, settings_.requests, settings_.width), response);
    else if (request.path == count_path)
      count_tokens(parse_message(request.body, settings_.requests), *response);
    else if (request.path == tokenize_path)
      tokenize(parse_tokenize(request.body, settings_.requests), *response);
    else
      detokenize(parse_detokenize(request.body, settings_.requests), *response);
  } catch (const Error& error) {
    response->send(http_status_of(error), json_type, error_json(error));
  }
}

std::optional<size_t> ApiServer::adapter_of(const std::string& name) const {
  if (name == settings_.model_name) return 0;
  const auto found = std::ranges::find(settings_.adapters, name);
  if (found == settings_.adapters.end()) return {};
  return 1 + static_cast<size_t>(found - settings_.adapters.begin());
}

std::optional<size_t> ApiServer::requested_adapter(const ChatRequest& request, HttpResponse& response) const {
  const auto adapter = request.model.empty() ? 0 : adapter_of(request.model);
  if (!adapter) refuse_model(response, "invalid_request_error", settings_);
  return adapter;
}

const std::string& ApiServer::name_of(size_t adapter) const {
  return adapter == 0 ? settings_.model_name : settings_.adapters.at(adapter - 1);
}

void ApiServer::tokenize(const ChatRequest& request, HttpResponse& response) const {
  if (!requested_adapter(request, response)) return;
  const std::vector<int64_t> tokens = prompts_.write(request).sample.texts.at(0).tokens;
  response.send(200, json_type,
                dumped({{"count", tokens.size()}, {"max_model_len", settings_.positions}, {"tokens", tokens}}));
}

void ApiServer::count_tokens(const ChatRequest& request, HttpResponse& response) const {
  if (!requested_adapter(request, response)) return;
  response.send(200, json_type, dumped({{"input_tokens", service_.prompt_tokens(request)}}));
}

void ApiServer::detokenize(const ChatRequest& request, HttpResponse& response) const {
  if (!requested_adapter(request, response)) return;
  response.send(200, json_type, dumped({{"prompt", prompts_.text_of(request.tokens, "tokens")}}));
}

void ApiServer::answer(std::vector<ChatRequest> prompts, ApiForm form, const std::shared_ptr<HttpResponse>& response) {
  const ChatRequest& first = prompts.front();
  const auto adapter = requested_adapter(first, *response);
  if (!adapter) return;
  if (first.attention && !settings_.has_attention)
    throw Error(ErrorKind::usage, "attention: the connector of this model attends to nothing").at("attention");
  for (ChatRequest& prompt : prompts) prompt.model = name_of(*adapter), prompt.adapter = *adapter;
  const std::string id = fmt::format("{}-{}", run_id_, requests_++);
  const auto answers = std::make_shared<Conversation>(prompts, documents_for(first, form, id), response);
  std::vector<std::pair<ChatRequest, std::shared_ptr<AnswerListener>>> submitted;
  for (ChatRequest& prompt : prompts) {
    auto listener = std::make_shared<PromptAnswers>(answers, prompt.first_answer);
    submitted.emplace_back(std::move(prompt), std::move(listener));
  }
  if (!service_.submit(std::move(submitted))) refuse_for_now(*response);
}

void ApiServer::embed(std::vector<ChatRequest> inputs, const std::shared_ptr<HttpResponse>& response) {
  const auto adapter = requested_adapter(inputs.front(), *response);
  if (!adapter) return;
  for (ChatRequest& input : inputs) input.model = name_of(*adapter), input.adapter = *adapter;
  const auto submit = [this](EmbeddingAnswers::Requests requests) { return service_.submit(std::move(requests)); };
  const int64_t at_a_time = (settings_.requests.most_prompts + 1) / 2; // so that there is room for other clients
  std::make_shared<EmbeddingAnswers>(std::move(inputs), response, submit)->begin(static_cast<size_t>(at_a_time));
}

nlohmann::json ApiServer::model(size_t adapter) const {
  using Json = nlohmann::json;
  const auto thinking = prompts_.thinking_switch(); // a variable of chat_template_kwargs
  return {{"id", name_of(adapter)},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "fvlm-engine"},
          {"max_model_len", settings_.positions}, // as vLLM has it, and the next
          {"parent", adapter > 0 ? Json(settings_.model_name) : Json()},
          {"fvlm", // an extension: what a request may hold
           {{"attention", settings_.has_attention},
            {"max_images", settings_.requests.most_images},
            {"max_tokens", settings_.requests.most_tokens},
            {"thinking", thinking ? Json{{"variable", thinking->variable}, {"default", thinking->is_on}} : Json()},
            {"usual_tokens", settings_.usual_tokens},
            {"video_frames", settings_.video_frames},
            {"video_part", settings_.video_is_part}}}};
}

std::string ApiServer::models() const {
  nlohmann::json data = nlohmann::json::array();
  for (size_t adapter = 0; adapter <= settings_.adapters.size(); ++adapter) data.push_back(model(adapter));
  return nlohmann::json{{"object", "list"}, {"data", std::move(data)}}.dump();
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
  text += "# HELP fvlm_requests_total Requests, by model.\n# TYPE fvlm_requests_total counter\n";
  for (const auto& [adapter, taken] : counts.by_adapter)
    text += fmt::format("fvlm_requests_total{{model=\"{}\"}} {}\n", escaped_label(name_of(adapter)), taken);
  add("prompt_tokens_total", "counter", "Rows of prompts, visual ones included.", counts.prompt_tokens);
  add("generated_tokens_total", "counter", "Tokens of answers.", counts.generated_tokens);
  add("cache_pages", "gauge", "Pages of the cache of keys and values.", counts.cache.pages);
  add("cache_pages_free", "gauge", "Pages that hold nothing.", counts.cache.free_pages);
  add("cache_pages_cached", "gauge", "Pages of ended answers that prompts can share.", counts.cache.cached_pages);
  add("cache_bytes", "gauge", "Memory of these pages and of the slots for states.", counts.cache_bytes);
  add("state_slots", "gauge", "Answers that have room for their states at once; 0: the model has none.",
      counts.cache.slots);
  add("state_slots_free", "gauge", "Slots of no answer.", counts.cache.free_slots);
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
