// fvlm-engine report: writes the HTML report of a run and prints its main figures, compares runs, or serves the report.
#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/plugin_options.h"
#include "report/comparison.h"
#include "report/live_page.h"
#include "report/page.h"
#include "report/run_summary.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace fvlm::cli {
namespace {

Json as_json(const report::Report& made) {
  Json document = {{"report", made.file.string()}, {"bytes", made.bytes}};
  document.update(report::summary_json(made.run, made.figures));
  document["missing"] = made.notes;
  return document;
}

constexpr const char* password_variable = "FVLM_PAGE_PASSWORD";

// "[::1]:8000", "0.0.0.0:8000" or a port alone, which programs of this machine can reach.
report::LivePage::Options page_options(const std::string& where) {
  report::LivePage::Options options;
  const size_t colon = where.rfind(':');
  std::string port = where;
  if (colon != std::string::npos) {
    options.host = where.substr(0, colon);
    port = where.substr(colon + 1);
    if (options.host.starts_with('[') && options.host.ends_with(']'))
      options.host = options.host.substr(1, options.host.size() - 2);
    else if (options.host.find(':') != std::string::npos)
      options.host.clear(); // an address without its brackets
  }
  int number = -1;
  const auto read = std::from_chars(port.data(), port.data() + port.size(), number);
  if (read.ec != std::errc() || read.ptr != port.data() + port.size() || number < 0 || number > 65535 ||
      options.host.empty())
    throw Error(ErrorKind::usage, "--page: expected [ADDRESS:]PORT, got '{}'", where);
  options.port = static_cast<uint16_t>(number);
  if (const char* password = std::getenv(password_variable)) options.password = password;
  const bool is_own = options.host.starts_with("127.") || options.host == "::1";
  if (!is_own && options.password.empty())
    throw Error(ErrorKind::usage, "--page: whoever reaches {} could read the run and stop it", options.host)
        .advise("set a password: {}=..., or forward a port of this machine: ssh -L 8000:127.0.0.1:8000",
                password_variable);
  return options;
}

report::LivePage* served = nullptr;

// Serves the page until Ctrl-C.
int serve_page(const std::filesystem::path& run, const std::string& where) {
  report::read_run(run); // or there is nothing to show
  report::LivePage page(run, page_options(where));
  served = &page;
  struct sigaction stops {};
  stops.sa_handler = [](int) { served->end(); };
  stops.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &stops, nullptr);
  log_info("{} is at {}; Ctrl-C ends it", run.string(), page.url());
  page.serve();
  return 0;
}

int compare(const std::vector<std::filesystem::path>& runs, const std::filesystem::path& out, bool json) {
  const report::Comparison made = report::write_comparison(runs, out);
  if (json) {
    Json document = {{"comparison", made.file.string()}, {"bytes", made.bytes}, {"runs", made.names}};
    document["differences"] = Json::array();
    for (const auto& one : made.differences)
      document["differences"].push_back({{"path", one.path}, {"values", one.values}});
    fmt::print("{}", dump(document));
    return 0;
  }
  TextTable table([&] {
    std::vector<std::string> header{"value"};
    header.insert(header.end(), made.names.begin(), made.names.end());
    return header;
  }());
  for (const auto& one : made.differences) {
    std::vector<std::string> row{one.path};
    row.insert(row.end(), one.values.begin(), one.values.end());
    table.row(row);
  }
  fmt::print("{}\n{} ({})\n", made.differences.empty() ? "The plans are the same.\n" : table.text(), made.file.string(),
             human_bytes(made.bytes));
  return 0;
}

// A thread that serves, as long as it lives.
class PageThread {
 public:
  PageThread(const std::filesystem::path& run, report::LivePage::Options options)
      : page_(run, std::move(options)), thread_([this] { page_.serve(); }) {}
  ~PageThread() {
    page_.end();
    thread_.join();
  }
  PageThread(const PageThread&) = delete;
  PageThread& operator=(const PageThread&) = delete;
  std::string url() const { return page_.url(); }

 private:
  report::LivePage page_;
  std::thread thread_;
};

} // namespace

std::shared_ptr<void> open_run_page(const std::filesystem::path& run, const std::string& where,
                                    std::function<void()> stop) {
  auto options = page_options(where);
  options.stop = std::move(stop);
  auto page = std::make_shared<PageThread>(run, std::move(options));
  log_info("the run's page is at {}", page->url());
  return page;
}

void write_report_page(const std::filesystem::path& run) {
  report::write_report(run);
}

int run_report(Arguments arguments) {
  Options options(
      "report RUN [RUN...] [--out FILE] [--page [ADDRESS:]PORT] [--json]",
      "Write one self-contained HTML file about a run: curves, results, where the time went, answers with the\n"
      "attention over frames, and the plan. Works while the run is still training. Several runs are compared on\n"
      "one page: what their plans differ in, their results, and their curves over each other.",
      "report runs/quickstart");
  options.positional("RUN", "the run folder")
      .remaining("RUNS", "further runs to compare it with")
      .value("out", "FILE", "output file; default RUN/report.html, of several runs comparison.html")
      .value("page", "[ADDRESS:]PORT",
             "serve the report, which follows a run that trains; beyond this machine with FVLM_PAGE_PASSWORD")
      .flag("json", "print the main figures as one JSON document on standard output");
  auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  std::filesystem::path run = *parsed->value("RUN");
  auto out = parsed->value("out");
  if (const auto others = parsed->values("RUNS"); !others.empty()) {
    if (parsed->value("page")) throw Error(ErrorKind::usage, "--page shows one run, and several were given");
    std::vector<std::filesystem::path> runs{run};
    runs.insert(runs.end(), others.begin(), others.end());
    return compare(runs, out.value_or("comparison.html"), parsed->flag("json"));
  }
  if (const auto where = parsed->value("page")) return serve_page(run, *where);
  auto made = out ? report::write_report(run, *out) : report::write_report(run);
  if (parsed->flag("json")) {
    fmt::print("{}", dump(as_json(made)));
    return 0;
  }
  fmt::print("{}", report::summary_text(made.run, made.figures));
  if (const auto kinds = report::kinds_text(made.run); !kinds.empty()) fmt::print("\n{}", kinds);
  if (!made.notes.empty()) fmt::print("\n{}\n", styled("Not in the report", Style::bold));
  for (const auto& note : made.notes) fmt::print("  {}\n", note);
  fmt::print("\n{} ({})\n", made.file.string(), human_bytes(made.bytes));
  return 0;
}

} // namespace fvlm::cli
