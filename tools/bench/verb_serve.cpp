// fvlm-engine bench serve: measures the server under load.
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"
#include "bench/mixed_load.h"
#include "bench/server_process.h"
#include "bench/serving.h"
#include "bench/training.h"
#include "bench/verb.h"
#include "bench/verb_numbers.h"
#include "bench/verb_report.h"
#include "cli/answering_model.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "model/weights/resolve_model.h"

#include <fmt/format.h>

#include <cstdlib>
#include <optional>

namespace fvlm::cli {
namespace {

Options serve_load_options() {
  Options options(
      "bench serve MODEL | --shape NAME | --url URL [--clients LIST] [--rate LIST] [--prompt N] [--answer N] [--json]",
      "Send streamed questions with text and pictures to `serve`, from so many clients at a time or at a rate with\n"
      "random arrivals, and print tokens per second, the time to the first token, from one token to the next, and to\n"
      "the end. The server is started for a model or a synthetic shape, or runs already. Of a model, the same\n"
      "questions are also answered as a batch without a server, as many at a time as there are clients (offline).\n"
      "--mixed measures nothing of this: it lets clients vanish, dawdle and send nonsense beside good ones, and fails\n"
      "where the server's memory grows, a page of the cache is lost, or a good answer is wrong.",
      "bench serve --shape 135m --clients 64 --rate 50%");
  with_image_options(with_plugin_options(options).positional("MODEL",
                                                             "a model directory, a checkpoint, or a run folder",
                                                             /*required=*/false))
      .value("shape", "NAME", "a synthetic model instead, with a tokenizer: tiny, 135m, 1.7b, smolvlm, ...")
      .value("url", "URL", "a server that runs, such as http://127.0.0.1:8000; its token is in FVLM_SERVE_TOKEN")
      .value("clients", "LIST", "clients at a time, each of which asks again when it has its answer; default 1,8,64")
      .value("rate", "LIST", "requests a second, or 50%: a share of those that were answered to clients; default none")
      .value("requests", "N", "requests of a measurement; default: 8 of each client, 10 seconds of a rate")
      .value("prompt", "N", "words of a question, about a token each; default 72")
      .value("answer", "N", "tokens of an answer at most; default 128")
      .value("images", "SHARE", "share of questions about a picture; default 0.5")
      .value("picture", "N", "pixels a side of a picture; default 448")
      .value("temperature", "T", "of sampling; default 0: greedy")
      .value("seed", "N", "of questions and arrivals; default 0")
      .value("cache-rows", "N", "rows of the server's cache; default: what the most clients need")
      .value("device", "cpu|cuda", "cpu or cuda; default: cuda where there is one")
      .value("dtype", "fp32|bf16", "fp32 or bf16; default: bf16 on a GPU, else fp32")
      .value("kernels", "NAMES", "plugins to use, in order of preference")
      .value("mixed", "MINUTES", "the mixed load for so long")
      .flag("json", "print one JSON document on standard output");
  return options;
}

bench::ServingLoad load_of(const ParsedOptions& parsed) {
  bench::ServingLoad load;
  load.clients = numbers_in("clients", parsed.value_or("clients", "1,8,64"), "1,8,64");
  if (const auto rates = parsed.value("rate"))
    for (std::string text : split(*rates, ',')) {
      const bool is_share = text.ends_with('%');
      if (is_share) text.pop_back();
      const auto rate = number_in<double>("rate", text, "2.5,50%");
      if (is_share)
        load.rate_shares.push_back(rate / 100);
      else
        load.rates.push_back(rate);
    }
  bench::LoadPrompts& prompts = load.prompts;
  prompts.prompt = parsed.integer_or("prompt", prompts.prompt);
  prompts.answer = parsed.integer_or("answer", prompts.answer);
  prompts.images = parsed.number_or("images", prompts.images);
  prompts.picture = parsed.integer_or("picture", prompts.picture);
  prompts.temperature = parsed.number_or("temperature", 0);
  prompts.seed = static_cast<uint64_t>(parsed.integer_or("seed", 0));
  load.requests = parsed.integer_or("requests", 0);
  check(load);
  return load;
}

// A model to serve, and how. A synthetic one lies in `models`.
struct ServedModel {
  std::filesystem::path folder;
  model::Execution execution;
};

ServedModel served_model(const ParsedOptions& parsed, std::optional<bench::SyntheticModels>& models) {
  ServedModel served;
  served.execution.device = parsed.value_or("device", default_device());
  served.execution.dtype = parsed.value_or("dtype", served.execution.device == "cpu" ? "fp32" : "bf16");
  if (const auto names = parsed.value("kernels")) served.execution.kernels = split(*names, ',');
  if (const auto name = parsed.value("shape")) {
    const bench::Shape& shape = bench::shape_named(*name);
    shape.require_whole_frames();
    served.folder = models.emplace(bench::stored_type(served.execution.dtype)).of(shape);
    bench::write_tokenizer(served.folder, shape.vocabulary());
  } else {
    served.folder = resolve_model(*parsed.value("MODEL"));
  }
  return served;
}

std::vector<std::string> server_options(const ParsedOptions& parsed, const ServedModel& served, int64_t cache_rows,
                                        int64_t clients) {
  std::vector<std::string> words{"--device", served.execution.device, "--dtype", served.execution.dtype};
  const auto add = [&](const std::string& name, const std::string& value) {
    words.insert(words.end(), {"--" + name, value});
  };
  for (const char* name : {"kernels", "system", "chat-template", "image-frames", "image-size", "plugin-dir"})
    for (const std::string& value : parsed.values(name)) add(name, value);
  if (parsed.flag("bundled-only")) words.emplace_back("--bundled-only");
  add("cache-rows", fmt::format("{}", parsed.integer_or("cache-rows", cache_rows)));
  add("sequences", fmt::format("{}", clients));
  add("queue", fmt::format("{}", std::max<int64_t>(256, 4 * clients)));
  add("max-tokens", parsed.value_or("answer", "128"));
  return words;
}

std::string in_milliseconds(const bench::ServingReport::Quantiles& seconds) {
  return fmt::format("{:.1f} {:.1f} {:.1f}", seconds.p50 * 1e3, seconds.p90 * 1e3, seconds.p99 * 1e3);
}

void print_times(const bench::ServingReport& report) {
  if (!report.offline) return;
  TextTable table({"load", "steps", "that read", "waits", "encodes", "reads", "its device", "decodes", "its device",
                   "server cpu", "prompts cpu", "model cpu", "delivery cpu", "clients cpu"});
  const auto add = [&](const std::string& load, const bench::ServingTimes& times, int64_t tokens) {
    const auto value = [&](const char* name) {
      const auto found = times.find(name);
      return found == times.end() ? 0 : found->second;
    };
    std::vector<std::string> cells{load};
    for (const char* name : {"steps", "reading steps"}) cells.push_back(fmt::format("{:.0f}", value(name)));
    for (const char* name : {"waiting", "encoding", "reading", "reading_device", "decoding", "decoding_device",
                             "server cpu", "prompts cpu", "model cpu", "delivery cpu", "clients cpu"})
      cells.push_back(fmt::format("{:.2f}", 1e6 * value((std::string(name) + " seconds").c_str()) /
                                                static_cast<double>(std::max<int64_t>(1, tokens))));
    table.row(std::move(cells));
  };
  for (const auto& row : report.rows) {
    if (!row.times.empty()) add(row.load, row.times, row.tokens);
    if (report.share_of_offline(row))
      add("  offline", report.offline->times.at(row.clients), report.offline->tokens.at(row.clients));
  }
  fmt::print("\nwhere the time goes: us a token of the model's thread, then processor time of threads\n{}",
             table.text());
}

void print_serving(const bench::ServingReport& report) {
  fmt::print("questions of {} words, {:.0f} % with a picture, answers of at most {} tokens; ms are p50 p90 p99\n\n",
             report.prompts.prompt, 100 * report.prompts.images, report.prompts.answer);
  TextTable table(
      {"load", "requests", "errors", "first token ms", "ms a token", "whole ms", "tokens/s", "offline", "share"});
  for (const auto& row : report.rows) {
    const auto share = report.share_of_offline(row);
    table.row({row.load, fmt::format("{}", row.requests), fmt::format("{}", row.errors), in_milliseconds(row.first),
               in_milliseconds(row.token), in_milliseconds(row.whole), fmt::format("{:.0f}", row.tokens_per_second()),
               share ? fmt::format("{:.0f}", report.offline->tokens_per_second.at(row.clients)) : "",
               share ? fmt::format("{:.0f} %", 100 * *share) : ""});
  }
  fmt::print("{}", table.text());
  print_times(report);
  if (report.ready_seconds > 0) fmt::print("\nthe server answered after {:.2f} s\n", report.ready_seconds);
  for (const auto& row : report.rows)
    if (!row.problem.empty()) log_warning("{}: {}", row.load, strip_control_characters(row.problem));
}

// What the server complained of, which may explain its figures.
void pass_on_warnings(const bench::ServerProcess& server) {
  for (const std::string& line : split(server.log(), '\n'))
    if (line.starts_with("warning: ") || line.starts_with("error: "))
      log_warning("the server says: {}", strip_control_characters(line));
}

int run_mixed(const ParsedOptions& parsed, const ServedModel& served, Progress& progress) {
  constexpr int64_t cache_rows = 4096, clients = 64;
  auto options = server_options(parsed, served, cache_rows, clients);
  options.insert(options.end(), {"--idle", "5"});
  bench::ServerProcess server(served.folder, options);
  const double minutes = parsed.number_or("mixed", 0);
  const auto report = bench::run_mixed_load(server, 60 * minutes, load_of(parsed).prompts.seed,
                                            [&](const auto&... step) { progress.steps(step...); });
  progress.finish();
  if (report.problems.empty()) server.stop();
  pass_on_warnings(server);
  if (parsed.flag("json"))
    fmt::print("{}", dump(Json{{"bench", "serve"}, {"mixed", report.json()}}));
  else
    fmt::print("{}", report.text());
  for (const std::string& problem : report.problems) log_error("{}", strip_control_characters(problem));
  return report.problems.empty() ? 0 : 1;
}

} // namespace

int bench_serve(Arguments arguments) {
  const auto parsed = serve_load_options().parse(arguments);
  if (!parsed) return 0;
  const auto url = parsed->value("url");
  if ((url ? 1 : 0) + (parsed->value("MODEL") ? 1 : 0) + (parsed->value("shape") ? 1 : 0) != 1)
    throw Error(ErrorKind::usage, "expected one of MODEL, --shape and --url")
        .advise("bench serve --shape 135m measures a synthetic model");
  const bench::ServingLoad load = load_of(*parsed);
  bench::ServingReport report{load.prompts, {}, 0, {}};
  Progress progress("measuring");
  const auto count = [&](const auto&... step) { progress.steps(step...); };
  std::optional<bench::SyntheticModels> models;
  Json document{{"bench", "serve"}};
  if (url) {
    if (parsed->value("mixed"))
      throw Error(ErrorKind::usage, "--mixed and --url are mutually exclusive: the server's memory is measured")
          .advise("give the model, and a server is started");
    bench::HttpAddress address = bench::address_of(*url);
    if (const char* token = std::getenv("FVLM_SERVE_TOKEN")) address.token = token;
    document["url"] = *url;
    measure_serving(address, load, /*has_times=*/false, report, count);
  } else {
    const ServedModel served = served_model(*parsed, models);
    document.update(Json{{"model", parsed->value_or("shape", served.folder.string())},
                         {"device", served.execution.device},
                         {"dtype", served.execution.dtype}});
    if (parsed->value("mixed")) return run_mixed(*parsed, served, progress);
    { // it ends before the server begins, so that they do not share the machine
      initialize_device(served.execution.device);
      AnsweringModel model(*parsed, "bench serve", served.folder, served.execution);
      report.offline = answer_offline(model.generator, model.prompts, load, count);
    }
    bench::ServerProcess server(served.folder,
                                server_options(*parsed, served, report.offline->cache_rows, load.max_clients()));
    report.ready_seconds = server.seconds_to_ready();
    measure_serving(server.address(), load, /*has_times=*/true, report, count);
    server.stop();
    progress.finish();
    pass_on_warnings(server);
  }
  progress.finish();
  return show(*parsed, std::move(document), report, print_serving);
}

} // namespace fvlm::cli
