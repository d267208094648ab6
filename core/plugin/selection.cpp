#include "plugin/selection.h"

#include "base/error.h"
#include "base/log.h"
#include "base/table.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm {
namespace {

class Selector {
 public:
  Selector(Registry& registry, const BackendPreference& preference, const SelectionQuery& questions,
           SelectionReport& report)
      : registry_(registry), preference_(preference), questions_(questions), report_(report) {
    for (const FoundPlugin& plugin : registry.implementing(questions.kind)) candidates_.push_back(plugin);
  }

  void consider_all() {
    for (const auto& name : preference_.names.empty() ? std::vector<std::string>{"auto"} : preference_.names)
      for (const FoundPlugin& candidate : candidates_)
        if (name == "auto" || meant_by(candidate.manifest.name, name)) consider(candidate);
  }

  const LoadedPlugin* run() {
    if (preference_.names.empty()) return best();
    for (const auto& name : preference_.names)
      if (const LoadedPlugin* chosen = name == "auto" ? best() : named(name)) return chosen;
    return nullptr;
  }

 private:
  bool meant_by(const std::string& plugin, const std::string& word) const {
    return plugin == word || plugin == fmt::format("{}-{}", questions_.label, word) ||
           (!questions_.kind.variant.empty() && plugin == fmt::format("{}-{}", word, questions_.kind.variant));
  }

  const LoadedPlugin* named(const std::string& word) {
    bool found = false;
    for (const FoundPlugin& candidate : candidates_)
      if (meant_by(candidate.manifest.name, word)) {
        found = true;
        const LoadedPlugin* loaded = consider(candidate);
        mark_named(candidate.manifest.name);
        if (loaded) return accept(loaded);
      }
    if (!found) report_.considered.push_back({word, false, 0, why_absent(word), {}, false, true});
    return nullptr;
  }

  void mark_named(const std::string& plugin) {
    for (CandidateAnswer& one : report_.considered)
      if (one.plugin == plugin) one.by_name = true;
  }

  std::string why_absent(const std::string& word) {
    std::vector<std::string> names;
    for (const FoundPlugin& plugin : registry_.found()) {
      if (meant_by(plugin.manifest.name, word)) return fmt::format("does not implement {}", questions_.kind.text());
      names.push_back(plugin.manifest.name);
    }
    const auto near = nearest(word, names);
    const std::string why = registry_.why_absent([&](const std::string& name) { return meant_by(name, word); });
    return near && why.starts_with("no plugin") ? fmt::format("{}; did you mean '{}'?", why, *near) : why;
  }

  const LoadedPlugin* best() {
    struct Fit {
      const LoadedPlugin* plugin;
      size_t index;
    };
    std::vector<Fit> fits;
    for (const FoundPlugin& candidate : candidates_)
      if (const LoadedPlugin* loaded = consider(candidate)) fits.push_back({loaded, report_.considered.size() - 1});
    if (preference_.measure && questions_.measure && fits.size() > 1) {
      std::erase_if(fits, [&](const Fit& fit) { return !measure(*fit.plugin, report_.considered[fit.index]); });
      if (auto table = report_.times(); !table.empty())
        log_debug("{} ({}) measured\n{}", report_.subject, report_.shape, table);
    }
    // Of equals, the first one found wins.
    auto better = [&](const Fit& a, const Fit& b) {
      const CandidateAnswer &left = report_.considered[a.index], &right = report_.considered[b.index];
      if (left.seconds && right.seconds) return *left.seconds < *right.seconds;
      return left.score > right.score;
    };
    auto first = std::ranges::min_element(fits, better);
    return first == fits.end() ? nullptr : accept(first->plugin);
  }

  bool measure(const LoadedPlugin& plugin, CandidateAnswer& considered) {
    std::string what;
    try {
      const Measurement measurement = questions_.measure(plugin);
      considered.seconds = measurement.seconds;
      considered.cached = measurement.cached;
      return true;
    } catch (const std::exception& error) {
      what = error.what();
    }
    // Only the first line: the others list the shapes of the call.
    considered.reason = "failed when it was measured: " + what.substr(0, what.find('\n'));
    considered.fits = false;
    return false;
  }

  // Asks a candidate, unless it was asked before, and records the answer. Null where it does not fit or was asked
  // before.
  const LoadedPlugin* consider(const FoundPlugin& candidate) {
    const std::string& name = candidate.manifest.name;
    for (const CandidateAnswer& before : report_.considered)
      if (before.plugin == name) return nullptr;
    CandidateAnswer considered{name, false, 0, "", {}};
    const LoadedPlugin* loaded = nullptr;
    const char* device = questions_.device == FVLM_CUDA ? "cuda" : "cpu";
    if (const auto known = preference_.without.find(name); known != preference_.without.end()) {
      considered.reason = known->second;
    } else if (!candidate.manifest.on_device(device)) {
      considered.reason = fmt::format("runs on {} only", join(candidate.manifest.devices, ", "));
    } else if (loaded = registry_.load(name, &considered.reason); loaded && !loaded->find(questions_.kind)) {
      considered.reason = fmt::format("does not implement {}", questions_.kind.text());
      loaded = nullptr;
    } else if (loaded) {
      SupportAnswer answer = questions_.ask(*loaded);
      considered.score = answer.score;
      considered.fits = answer.defect.empty() && answer.score > 0;
      considered.reason = answer.defect.empty() ? answer.reason : answer.defect;
      if (!considered.fits && considered.reason.empty()) considered.reason = "refused without a reason";
    }
    report_.considered.push_back(considered);
    return considered.fits ? loaded : nullptr;
  }

  const LoadedPlugin* accept(const LoadedPlugin* plugin) {
    report_.chosen = plugin->name();
    return plugin;
  }

  Registry& registry_;
  const BackendPreference& preference_;
  const SelectionQuery& questions_;
  SelectionReport& report_;
  std::vector<FoundPlugin> candidates_;
};

} // namespace

BackendPreference BackendPreference::of(std::vector<std::string> words) {
  BackendPreference preference{std::move(words)};
  for (std::string& word : preference.names)
    if (word == "measure") {
      word = "auto";
      preference.measure = true;
    }
  return preference;
}

std::string SelectionReport::text() const {
  std::string text, refused;
  for (const CandidateAnswer& one : considered) {
    if (one.plugin == chosen && one.fits)
      text =
          fmt::format("{}: {} (score {}{})", subject, chosen, one.score, one.reason.empty() ? "" : ": " + one.reason);
    else if (!one.fits)
      refused += fmt::format("{}{}: {}", refused.empty() ? "" : "; ", one.plugin, one.reason);
  }
  return refused.empty() ? text : fmt::format("{}; refused: {}", text, refused);
}

std::string SelectionReport::reason() const {
  for (const CandidateAnswer& one : considered)
    if (one.plugin == chosen && one.fits) return one.reason;
  return "";
}

std::string SelectionReport::times() const {
  TextTable table({"plugin", "milliseconds", "measured", "score", ""});
  bool any = false;
  for (const CandidateAnswer& one : considered) {
    if (!one.seconds) continue;
    any = true;
    table.row({one.plugin, fmt::format("{:.3f}", *one.seconds * 1e3), one.cached ? "earlier" : "now",
               std::to_string(one.score), one.reason});
  }
  return any ? table.text() : "";
}

std::vector<CandidateAnswer> answers(Registry& registry, const BackendPreference& preference,
                                     const SelectionQuery& questions) {
  SelectionReport report;
  Selector(registry, preference, questions, report).consider_all();
  return report.considered;
}

const LoadedPlugin* choose(Registry& registry, const BackendPreference& preference, const SelectionQuery& questions,
                           SelectionReport& report) {
  report.subject = questions.subject;
  report.shape = questions.shape;
  if (const LoadedPlugin* chosen = Selector(registry, preference, questions, report).run()) {
    if (const std::string line = report.text(); registry.is_first_occurrence(line)) log_debug("{}", line);
    return chosen;
  }
  std::string refused;
  for (const CandidateAnswer& one : report.considered) refused += fmt::format("\n  {}: {}", one.plugin, one.reason);
  if (refused.empty()) refused = fmt::format("\n  no plugin implements {}", questions.kind.text());
  const auto implementing = registry.implementing(questions.kind);
  const bool has_reference =
      std::ranges::any_of(implementing, [](const FoundPlugin& found) { return found.origin == Origin::builtin; });
  std::string wanted = preference.names.empty() ? "auto" : join(preference.names, ", ");
  throw Error(ErrorKind::plugin, "{}: none of the preferred plugins ({}) supports it{}", questions.subject, wanted,
              refused)
      .advise(
          has_reference
              ? "append \"reference\" to the list to fall back to the built-in plugin, or see `fvlm-engine plugin list`"
              : "there is no built-in one: see `fvlm-engine plugin list`, and install a plugin that implements it");
}

std::vector<std::pair<std::string, std::vector<std::string>>> fused_backends(Registry& registry) {
  const KindName kind{std::string(KindOf<fvlm_kernels_v1>::family), ""};
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const FoundPlugin& found : registry.implementing(kind)) {
    if (found.origin == Origin::builtin) continue;
    const LoadedPlugin* plugin = registry.load(found.manifest.name);
    if (!plugin) continue;
    const auto& operations = plugin->find(kind)->operations;
    all.emplace_back(plugin->name(), std::vector<std::string>(operations.begin(), operations.end()));
  }
  return all;
}

std::string fused_backends_line(Registry& registry) {
  std::vector<std::string> all;
  for (const auto& [plugin, operations] : fused_backends(registry))
    all.push_back(fmt::format("{} ({})", plugin, join(operations, ", ")));
  return "Fused kernel backends available: " + (all.empty() ? "none, using the references" : join(all, ", "));
}

} // namespace fvlm
