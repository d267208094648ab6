// The entry point of fvlm-engine: finds the verb, runs it, and turns an Error into a message and an exit code.
#include "base/error.h"
#include "base/process_end.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/failure.h"
#include "cli/manual.h"
#include "cli/options.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "cli/verb.h"
#include "cli/version.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace fvlm::cli {
namespace {

constexpr Verb verbs[] = {
    {"check", "validate a recipe and report every mistake", run_check},
    {"plan", "print what a recipe resolves to, or compare two", run_plan},
    {"recipe", "write a first recipe for a model and data; print the reference of all keys", run_recipe},
    {"train", "train the stages of a recipe, or resume a run", run_in_module<&TensorModule::train>},
    {"plugin", "list, check, create and trust plugins", run_plugin},
    {"import", "make a model directory from Hugging Face folders", run_import},
    {"export", "convert a model to bf16, fp16 or fp32, or quantize it", run_export},
    {"lora", "merge, export and import low-rank adapters", run_in_module<&TensorModule::lora>},
    {"preprocess", "tokenize, decode and resize a recipe's data once", run_preprocess},
    {"tokenize", "convert text to token ids, and back", run_tokenize},
    {"data", "inspect and check a recipe's data", run_in_module<&TensorModule::data>},
    {"trace", "run one batch through a model and save every tensor", run_in_module<&TensorModule::trace>},
    {"eval", "evaluate a model on held-out samples or a benchmark", run_in_module<&TensorModule::eval>},
    {"generate", "answer a prompt about an image, a video or text", run_in_module<&TensorModule::generate>},
    {"chat", "talk with a model on the terminal", run_in_module<&TensorModule::chat>},
    {"serve", "serve a chat page, and OpenAI's API over HTTP", run_in_module<&TensorModule::serve>},
    {"report", "write an HTML report of a run", run_report},
    {"bench", "measure speed on this machine, against PyTorch", run_in_module<&TensorModule::bench>},
    {"doctor", "show which devices and libraries can be used", run_doctor},
    {"completion", "print completion of these verbs for bash, zsh or fish", run_completion},
};

constexpr const char* footer = R"(
Exit codes: 0 done, 1 defect in fvlm-engine, 2 usage, 3 recipe, 4 data, 5 plugin, 6 device or LibTorch,
7 cannot write output, 8 training diverged, 75 stopped but resumable. With --json a failure is a document, too:
{"ok": false, "error": {"kind", "code", "what", "where", "advice"}}. NO_COLOR is respected.
`fvlm-engine help VERB` describes a verb, with an example first; `help --man` prints all of it as a manual page;
`--version` says how the program was built.
)";

void print_help() {
  fmt::print("fvlm-engine {}: trains, quantizes and serves small vision-language models\n\n{}\n  {}\n\nVerbs\n",
             FVLM_VERSION, styled("Example", Style::bold),
             styled("fvlm-engine plan recipes/quickstart.lua", Style::cyan));
  for (const Verb& verb : verbs) fmt::print("  {:<10}  {}\n", verb.name, verb.summary);
  fmt::print("{}", footer);
}

int run(Arguments arguments) {
  if (arguments.size() == 2 && arguments[0] == "help" && arguments[1] == "--man") {
    fmt::print("{}", manual_page());
    return 0;
  }
  // `help plugin check` is the same as `plugin check --help`.
  if (arguments.size() > 1 && arguments[0] == "help") {
    std::vector<std::string> words(arguments.begin() + 1, arguments.end());
    words.emplace_back("--help");
    return run(words);
  }
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    print_help();
    return arguments.empty() ? static_cast<int>(ErrorKind::usage) : 0;
  }
  if (arguments[0] == "--version") {
    const bool json = arguments.size() == 2 && arguments[1] == "--json";
    if (arguments.size() > 1 && !json)
      throw Error(ErrorKind::usage, "--version: unexpected argument '{}'", arguments[1])
          .advise("usage: fvlm-engine --version [--json]");
    fmt::print("{}", json ? dump(version_json()) : version_text());
    return 0;
  }
  std::vector<std::string> names;
  for (const Verb& verb : verbs) {
    if (arguments[0] == verb.name) return verb.run(arguments.subspan(1));
    names.push_back(verb.name);
  }
  note_json_request(arguments);
  Error error(ErrorKind::usage, "no verb '{}'", arguments[0]);
  auto near = nearest(arguments[0], names);
  error.advise(near ? fmt::format("did you mean '{}'?", *near) : "fvlm-engine --help lists the verbs");
  throw error;
}

// Flushes standard output, which may fail on a full disk. What an earlier flush could not write is gone, and the
// stream's error alone tells of it. A closed standard output (EBADF) is not an error: nobody reads it.
int flush_output(int code) {
  if (std::fflush(stdout) != 0 && errno != EBADF)
    throw Error(ErrorKind::output, std::strerror(errno)).at("standard output");
  if (std::ferror(stdout) && fcntl(STDOUT_FILENO, F_GETFD) != -1)
    throw Error(ErrorKind::output, "a part of what was printed could not be written").at("standard output");
  return code;
}

// Data of many shards take many open files, and a shell usually allows 1024. Programs that are started inherit the
// limit, and some look at every descriptor that they may have, so there is a bound.
void raise_limit_of_open_files() {
  constexpr rlim_t enough = 65536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= enough) return;
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  setrlimit(RLIMIT_NOFILE, &limit);
}

} // namespace

std::span<const Verb> all_verbs() {
  return verbs;
}

int run_group(const char* group, const char* summary, std::span<const Verb> members, Arguments arguments) {
  if (VerbHelp* help = verb_being_described()) {
    help->description = summary;
    for (const Verb& verb : members) help->members.push_back(describe(verb, std::string(group) + " "));
    return 0;
  }
  std::vector<std::string> names;
  for (const Verb& verb : members) names.push_back(verb.name);
  if (!arguments.empty() && arguments[0] != "--help" && arguments[0] != "-h") {
    for (const Verb& verb : members)
      if (arguments[0] == verb.name) return verb.run(arguments.subspan(1));
    note_json_request(arguments);
    Error error(ErrorKind::usage, "{} has no '{}'", group, arguments[0]);
    auto near = nearest(arguments[0], names);
    error.advise(near ? fmt::format("did you mean '{} {}'?", group, *near) : "one of: " + join(names, ", "));
    throw error;
  }
  fmt::print("{}\n\n", summary);
  size_t width = 0;
  for (const auto& name : names) width = std::max(width, name.size());
  for (const Verb& verb : members) fmt::print("  fvlm-engine {} {:<{}}  {}\n", group, verb.name, width, verb.summary);
  return arguments.empty() ? static_cast<int>(ErrorKind::usage) : 0;
}

} // namespace fvlm::cli

int main(int count, char** words) {
  std::vector<std::string> arguments(words + 1, words + count);
  std::signal(SIGXFSZ, SIG_IGN); // a file beyond the limit (ulimit -f) is a failed write, as on a full disk
  fvlm::cli::raise_limit_of_open_files();
  try {
    fvlm::sanitize_standard_output();
    fvlm::end_process(fvlm::cli::flush_output(fvlm::cli::run(arguments)));
  } catch (...) {
    fvlm::end_process(fvlm::cli::report_failure());
  }
}
