// fvlm-engine serve: answers requests over HTTP, in the form of OpenAI's API.
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/adapter_options.h"
#include "cli/answering_model.h"
#include "cli/draft_options.h"
#include "cli/execution_options.h"
#include "cli/named_model.h"
#include "cli/tensor_module.h"
#include "model/weights/generation_config.h"
#include "model/weights/model_file.h"
#include "serve/api_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

namespace fvlm::cli {
namespace {

Options serve_options() {
  Options options(
      "serve MODEL [--port N] [--host ADDRESS] [--token-file FILE] [--device cpu|cuda] [--dtype TYPE]",
      "Serve a chat page, and answer requests over HTTP as OpenAI's API has them: POST\n"
      "/v1/chat/completions, /v1/responses and /v1/completions, whole or as a stream, and\n"
      "/v1/embeddings; GET /v1/models, /health, /metrics (Prometheus). Images are JPEG, PNG, WebP or GIF in\n"
      "data URLs; nothing is fetched from a network or read from a file that a request names. All requests are\n"
      "answered together, a token of each in every step. Without a token every program that reaches the address\n"
      "can ask: keep it on 127.0.0.1, or set one and put a proxy with TLS in front. Ctrl-C or SIGTERM ends it\n"
      "after the requests that have begun.",
      "serve runs/quickstart --port 8000");
  with_adapters_option(
      with_draft_options(with_media_options(with_answering_options(options).positional("MODEL", named_model_help))))
      .value("host", "ADDRESS", "listen on this IP address; default 127.0.0.1: for programs on this machine only")
      .value("port", "N", "listen on this port; 0: any free one; default 8000")
      .repeated_value("allow-host", "NAME",
                      "a name that clients call the server by, besides localhost and IP addresses (repeatable)")
      .repeated_value("allow-origin", "ORIGIN",
                      "pages of this origin may ask, such as https://example.com (repeatable); with a token '*' stands "
                      "for all")
      .value("name", "NAME", "the model's name for clients; default: that of its folder")
      .value("token-file", "FILE", "clients must present the token in this file; default: that in FVLM_SERVE_TOKEN")
      .value("max-tokens", "N",
             "tokens of an answer whose request sets no max_tokens; default: what --cache-rows has room for behind its "
             "prompt, 512 at least")
      .flag("plain-sampling", "what requests leave open of sampling is temperature 1 and nothing else, whatever the "
                              "model's generation_config.json recommends")
      .value("queue", "N", "requests that may wait or be answered; further ones get status 429; default 256")
      .value("cache-rows", "N", "rows of the cache of keys and values, for all answers together; default 8192")
      .value("sequences", "N",
             "answers at once of a model that carries states from row to row, for which memory is taken; default 64")
      .value("prefill-rows", "N",
             "rows of prompts in one step, so that long prompts do not stall answers; default 2048, and 8192 while no "
             "answer waits; on a CPU 256")
      .value("body-limit", "MIB", "the largest request; default 32")
      .value("connections", "N", "connections at a time; default 1024")
      .value("idle", "SECONDS", "how long a client may take to send a request or to read an answer; default 60")
      .value("patience", "SECONDS", "how long an answer may take to begin, before status 503; default 600")
      .value("grace", "SECONDS", "how long the end waits for answers that have begun; default 30");
  return options;
}

std::string token_of(const ParsedOptions& parsed) {
  const auto file = parsed.value("token-file");
  const char* variable = std::getenv("FVLM_SERVE_TOKEN");
  std::string token = trimmed(file ? read_file(*file, 4096) : variable ? variable : "");
  if (file && token.empty()) throw Error(ErrorKind::usage, "the file of --token-file is empty").at(*file);
  return token;
}

bool is_of_this_machine(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

// What the model's authors recommend takes the place of the usual settings, as in vLLM.
void recommend(const std::filesystem::path& model, infer::Sampling& usual) {
  const RecommendedSampling own = recommended_sampling(decoder_folder(model));
  usual.temperature = own.temperature.value_or(usual.temperature);
  usual.top_p = own.top_p.value_or(usual.top_p);
  usual.top_k = own.top_k.value_or(usual.top_k);
  usual.min_p = own.min_p.value_or(usual.min_p);
  usual.repetition_penalty = own.repetition_penalty.value_or(usual.repetition_penalty);
  if (own.temperature || own.top_p || own.top_k || own.min_p || own.repetition_penalty)
    log_info(
        "what requests leave open of sampling is as the model's generation_config.json recommends: temperature {:g}, "
        "top_p {:g}, top_k {}, min_p {:g}, repetition_penalty {:g}",
        usual.temperature, usual.top_p, usual.top_k, usual.min_p, usual.repetition_penalty);
}

HttpServer* serving = nullptr;

// Stops the server at the first signal; the second one ends the process.
void stop_at_signals(HttpServer& server) {
  serving = &server;
  struct sigaction stops {};
  stops.sa_handler = [](int) { serving->stop(); };
  stops.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &stops, nullptr);
}

} // namespace

int serve_model(Arguments arguments) {
  const auto parsed = serve_options().parse(arguments);
  if (!parsed) return 0;
  HttpLimits http;
  http.body_bytes = static_cast<uint64_t>(parsed->integer_or("body-limit", 32, 1)) << 20;
  http.all_body_bytes = std::max(http.all_body_bytes, http.body_bytes);
  http.connections = parsed->integer_or("connections", http.connections, 1);
  http.idle = std::chrono::seconds(parsed->integer_or("idle", http.idle.count(), 1));
  http.first_byte = std::chrono::seconds(parsed->integer_or("patience", http.first_byte.count(), 1));
  serve::ServiceLimits limits;
  limits.requests = parsed->integer_or("queue", limits.requests, 1);
  limits.cache_rows = parsed->integer_or("cache-rows", limits.cache_rows, 1);
  limits.sequences = parsed->integer_or("sequences", limits.sequences, 1);
  limits.prefill_rows = parsed->integer_or("prefill-rows", limits.prefill_rows, 1);
  limits.draft_tokens = draft_tokens_of(*parsed);
  if (parsed->value("max-tokens")) limits.max_tokens = parsed->integer_or("max-tokens", 0, 1);
  const int64_t port = parsed->integer_or("port", 8000);
  if (port < 0 || port > 65535) throw Error(ErrorKind::usage, "--port: {} is no port", port);
  RequestGuard guard(parsed->values("allow-host"), parsed->values("allow-origin"));
  const std::string token = token_of(*parsed), host = parsed->value_or("host", "127.0.0.1");

  if (guard.allows_any_origin() && token.empty())
    throw Error(ErrorKind::usage, "--allow-origin '*' lets every page in the user's browser ask, and there is no token")
        .advise("give the server one with --token-file, or name the pages' origins");

  // The port is taken before the model is loaded, so that one that is in use is found at once.
  serve::ApiServer* handler = nullptr;
  HttpServer server(
      host, static_cast<uint16_t>(port), http,
      [&](auto request, auto response) { handler->handle(std::move(request), std::move(response)); },
      serve::json_refusal);
  AnsweringModel model(*parsed, "serve");
  const std::string name = parsed->value_or("name", usual_name_of_model(*parsed->value("MODEL")));
  const std::vector<std::string> adapters = add_adapters(*parsed, name, model.generator);
  model.generator.prepare_frames(model.input.media.image_size);
  serve::AnswerService service(model.generator, model.tokenizer, model.prompts, limits,
                               serve::AnswerService::Start::prepared);
  serve::RequestLimits requests;
  try {
    requests.takes_parts = model.prompts.chat().takes_parts();
  } catch (const Error& error) {
    log_warning("the model has no chat template, so that it answers /v1/completions and no conversations: {}",
                error.what());
  }
  const FramePreparation preparation = model.input.media.preparation();
  const bool has_cells = preparation.has_cells();
  int64_t video_frames = preparation.most_frames(model.input.media.max_frames);
  // Where frames are cells, max_frames of a run counts these, and clients count frames.
  if (has_cells)
    video_frames = preparation.processor()->video ? parsed->integer_or("frames", MediaOptions().max_frames, 1) : 0;
  const int64_t positions = model.generator.config().decoder.max_position_embeddings,
                usual_tokens = limits.max_tokens.value_or(std::min(serve::usual_tokens(limits, 0), positions));
  requests.most_tokens = std::max({requests.most_tokens, positions, usual_tokens});
  if (model.rows.text_only) video_frames = 0;
  requests.most_images = model.rows.text_only ? 0 : std::max(requests.most_images, video_frames);
  requests.has_images_beside_video = preparation.has_video_text();
  requests.most_prompts = std::min(requests.most_prompts, limits.requests);
  requests.max_tokens = limits.max_tokens;
  if (!parsed->flag("plain-sampling")) recommend(model.folder, requests.usual_sampling);
  serve::ApiServer api(service, model.prompts,
                       {name, adapters, token, requests, usual_tokens, model.generator.has_attention(), video_frames,
                        preparation.has_own_videos() && video_frames > 0, positions,
                        model.generator.config().decoder.hidden_size},
                       std::move(guard));
  handler = &api;
  server.listen();
  stop_at_signals(server);
  const std::string address =
      fmt::format("{}:{}", host.find(':') == std::string::npos ? host : "[" + host + "]", server.port());
  log_info("'{}' is served at http://{}/v1{}, {}; chat with it at http://{}/; Ctrl-C ends it", name, address,
           token.empty() ? "" : ", for clients with the token", model.execution.text(), address);
  if (token.empty() && !is_of_this_machine(host))
    log_warning("whoever reaches {} can use the model: --token-file gives the server a token that clients must present",
                address);
  server.run(std::chrono::seconds(parsed->integer_or("grace", 30, 1)));
  api.stop(); // both before the server, to which they send what is left
  service.stop();
  log_info("{} answered", counted(service.counts().answered, "request"));
  return 0;
}

} // namespace fvlm::cli
