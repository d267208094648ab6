#include "check/child.h"

#include "base/clock.h"
#include "base/text.h"
#include "check/context.h"
#include "check/families.h"
#include "check/host.h"
#include "check/other_process.h"
#include "check/probe.h"
#include "check/process_checks.h"
#include "check/reference.h"

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <csignal>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace fvlm::check {
namespace {

void send_line(const nlohmann::json& what) {
  const std::string line = what.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (size_t written = 0; written < line.size();) {
    const ssize_t count = write(report_descriptor, line.data() + written, line.size() - written);
    if (count <= 0) _exit(1); // the supervisor is gone
    written += static_cast<size_t>(count);
  }
}

class Child {
 public:
  explicit Child(Job job)
      : job_(std::move(job)),
        subject_(job_.library.empty() ? Subject(reference_entry()) : Subject(job_.library, job_.declared)),
        started_(job_.after.empty()), failed_(job_.failed.begin(), job_.failed.end()) {}

  void run() {
    subject_.refusal = job_.refusal;
    subject_.command = job_.command;
    {
      Context context(subject_, "", at::kCPU, job_.quick);
      table("library", table_of("library"), context);
    }
    if (has_failed("library.enters") || has_failed("library.opens") || has_failed("library.is_library")) return;
    if (auto failure = subject_.enter(); !failure.empty()) return;
    report_plugin();
    if (has_failed("library.tables_complete") || has_failed("library.variant_agrees")) return;
    for (const auto& kind : subject_.kinds()) {
      const bool on_host = family_of_kind(kind).on_host;
      Context context(subject_, kind, on_host ? at::Device(at::kCPU) : at::Device(job_.device), job_.quick);
      const Table& rows = table_of(family_of(kind));
      table(short_kind(kind), rows, context);
      if (job_.bench)
        for (const Benchmark& benchmark : rows.benchmarks) measure(short_kind(kind), benchmark, context);
    }
  }

 private:
  bool has_failed(const std::string& name) const { return std::ranges::find(failed_, name) != failed_.end(); }

  void report_plugin() {
    const fvlm_plugin& plugin = subject_.plugin();
    send_line({{"plugin", plugin.name ? plugin.name : ""},
               {"version", plugin.version ? plugin.version : ""},
               {"kinds", subject_.kinds()}});
  }

  // Whether to run this row: rows up to and including job.after were run by an earlier child.
  bool due(const std::string& name) {
    if (started_) return is_selected(job_, name) || essential(name);
    started_ = name == job_.after;
    return false;
  }

  // Without these no other row can run.
  static bool essential(const std::string& name) { return name == "library.opens" || name == "library.enters"; }

  // "causal", or "forward_*"
  static bool matches(std::string_view row, std::string_view need) {
    return need.ends_with('*') ? row.starts_with(need.substr(0, need.size() - 1)) : row == need;
  }

  // The failed row on which this one builds, "" for none.
  std::string missing(const std::string& prefix, std::string_view needs) const {
    while (!needs.empty()) {
      auto comma = needs.find(',');
      std::string_view need = needs.substr(0, comma);
      needs = comma == std::string_view::npos ? "" : needs.substr(comma + 1);
      for (const auto& name : failed_)
        if (name.starts_with(prefix + ".") && matches(std::string_view(name).substr(prefix.size() + 1), need))
          return name;
    }
    return "";
  }

  void table(const std::string& prefix, const Table& rows, Context& context) {
    for (const Check& check : rows.checks) {
      const std::string name = prefix + "." + check.name;
      if (!due(name) || (job_.quick && check.extent == Extent::thorough)) continue;
      send_line({{"begin", name}, {"proves", check.proves}});
      const double start = steady_seconds();
      Outcome outcome;
      bool blocked = false;
      // A child that begins behind the row `enters` has not entered yet.
      if (std::string_view(check.needs).starts_with("enters") && missing(prefix, "opens,enters").empty())
        subject_.enter();
      if (auto need = missing(prefix, check.needs); !need.empty())
        outcome = not_applicable("builds on " + need + ", which failed"), blocked = true;
      else
        outcome = guarded(name, check, context);
      if (outcome.state == State::failed || blocked) failed_.push_back(name);
      send_line({{"end", name},
                 {"blocked", blocked},
                 {"state", static_cast<int>(outcome.state)},
                 {"text", outcome.text},
                 {"seconds", steady_seconds() - start}});
    }
  }

  Outcome guarded(const std::string& name, const Check& check, Context& context) {
    set_float_mode(float_mode_); // whatever the plugin did to it in an earlier row
    Outcome outcome = run_catching(check, context);
    if (float_mode() != float_mode_ && float_mode_left_by().empty()) float_mode_left_by() = name;
    return outcome;
  }

  static Outcome run_catching(const Check& check, Context& context) {
    try {
      return check.run(context);
    } catch (const RowAborted& refused) {
      return {refused.state, refused.text};
    } catch (const std::exception& exception) {
      return failed("an exception: {}", exception.what());
    } catch (...) {
      return failed("an exception of a type of its own");
    }
  }

  void measure(const std::string& prefix, const Benchmark& benchmark, Context& context) {
    const std::string name = prefix + ".bench." + benchmark.name;
    if (!due(name)) return;
    send_line({{"begin", name}, {"proves", benchmark.measures}});
    Outcome outcome;
    try {
      auto figures = benchmark.run(context);
      for (const Measurement& figure : figures)
        send_line({{"figure", prefix + ": " + figure.name},
                   {"unit", figure.unit},
                   {"plugin", figure.plugin},
                   {"reference", figure.reference},
                   {"plugin_cpu", figure.plugin_cpu},
                   {"reference_cpu", figure.reference_cpu}});
      if (figures.empty()) outcome = not_applicable("the plugin does not do this shape");
    } catch (const RowAborted& refused) {
      outcome = {refused.state, refused.text};
    } catch (const std::exception& exception) {
      outcome = failed("an exception: {}", exception.what());
    }
    send_line({{"end", name}, {"state", static_cast<int>(outcome.state)}, {"text", outcome.text}, {"seconds", 0}});
  }

  Job job_;
  Subject subject_;
  bool started_;
  std::vector<std::string> failed_; // and those that build on them
  const uint32_t float_mode_ = float_mode();
};

} // namespace

bool is_selected(const Job& job, const std::string& row) {
  const auto parts = split(job.only, ',');
  return job.only.empty() || std::ranges::any_of(parts, [&](const std::string& part) {
           return !part.empty() && row.find(part) != std::string::npos;
         });
}

std::string to_text(const Job& job) {
  nlohmann::json text{{"library", job.library}, {"device", job.device},   {"after", job.after},
                      {"failed", job.failed},   {"only", job.only},       {"bench", job.bench},
                      {"quick", job.quick},     {"command", job.command}, {"child_task", job.child_task},
                      {"kind", job.kind}};
  if (job.refusal) text["refusal"] = *job.refusal;
  if (job.declared)
    text["declared"] = {{"name", job.declared->name},
                        {"version", job.declared->version},
                        {"kinds", job.declared->kinds},
                        {"abi", job.declared->abi}};
  return text.dump();
}

Job job_from(const std::string& text) {
  auto parsed = nlohmann::json::parse(text);
  Job job;
  parsed.at("library").get_to(job.library);
  parsed.at("device").get_to(job.device);
  parsed.at("after").get_to(job.after);
  parsed.at("failed").get_to(job.failed);
  parsed.at("only").get_to(job.only);
  parsed.at("bench").get_to(job.bench);
  parsed.at("quick").get_to(job.quick);
  parsed.at("command").get_to(job.command);
  parsed.at("child_task").get_to(job.child_task);
  parsed.at("kind").get_to(job.kind);
  if (parsed.contains("refusal")) job.refusal = parsed["refusal"];
  if (parsed.contains("declared")) {
    const auto& declared = parsed["declared"];
    job.declared =
        DeclaredPlugin{declared.at("name"), declared.at("version"), declared.at("kinds"), declared.at("abi")};
  }
  return job;
}

void keep_alive() {
  send_line({{"alive", true}});
}

void run_child(const std::string& job, fvlm_plugin_entry_function reference) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  at::set_num_threads(1); // LibTorch's own threads would be taken for the plugin's
  set_reference_entry(reference);
  install_yield_handler();
  const Job parsed_job = job_from(job);
  if (!parsed_job.child_task.empty()) run_child_task(parsed_job, *new Subject(parsed_job.library, parsed_job.declared));
  Child(parsed_job).run();
  send_line({{"done", true}});
  // Without destructors: what a plugin does when it is unloaded is not its contract, it never is.
  _exit(0);
}

} // namespace fvlm::check
