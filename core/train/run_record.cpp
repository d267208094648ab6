#include "train/run_record.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <random>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* file_name = "run.json";
constexpr int64_t format_version = 1;

std::string checksum(const OrderedJson& content) {
  return fmt::format("{:016x}", xxh64(content.dump()));
}

} // namespace

bool RunRecord::has_plan(const std::string& hash) const {
  return std::ranges::any_of(plans, [&](const Plan& plan) { return plan.hash == hash; });
}

void RunRecord::accept(const std::string& hash, std::string changes) {
  if (plans.empty() || plans.back().hash != hash) plans.push_back({hash, std::move(changes)});
}

std::vector<std::string> RunRecord::changes_since(const std::string& hash) const {
  const auto last = std::find_if(plans.rbegin(), plans.rend(), [&](const Plan& plan) { return plan.hash == hash; });
  std::vector<std::string> changes;
  for (auto plan = last.base(); last != plans.rend() && plan != plans.end(); ++plan)
    if (!plan->changes.empty()) changes.push_back(plan->changes);
  return changes;
}

std::string RunRecord::text() const {
  OrderedJson content = {{"format_version", format_version}, {"id", id}, {"plans", OrderedJson::array()}};
  for (const Plan& plan : plans) content["plans"].push_back({{"hash", plan.hash}, {"changes", plan.changes}});
  for (const auto& [stage, pack] : packs) content["packs"][stage] = {{"tokens", pack.tokens}, {"frames", pack.frames}};
  content["checksum"] = checksum(content);
  return content.dump(1) + "\n";
}

RunRecord RunRecord::read(const fs::path& run) {
  const fs::path file = run / file_name;
  RunRecord record;
  if (!fs::exists(file)) return record;
  try {
    OrderedJson content = OrderedJson::parse(read_file(file));
    const std::string stated = content.at("checksum");
    content.erase("checksum");
    if (stated != checksum(content)) throw Error(ErrorKind::data, "its checksum does not fit");
    if (const int64_t version = content.at("format_version"); version != format_version)
      throw Error(ErrorKind::data, "its format is {}, and {} is read here", version, format_version);
    record.id = content.at("id");
    if (content.contains("packs"))
      for (const auto& [stage, pack] : content.at("packs").items())
        record.packs[stage] = {pack.at("tokens"), pack.at("frames")};
    for (const OrderedJson& plan : content.at("plans")) record.plans.push_back({plan.at("hash"), plan.at("changes")});
  } catch (const std::exception& error) {
    log_warning("{} is not used: {}\n  checkpoints are compared with the run's plan instead", file.string(),
                error.what());
    record = {};
  }
  return record;
}

void RunRecord::write(const fs::path& run) const {
  const fs::path file = run / file_name;
  if (!fs::exists(file) || read_file(file) != text()) write_file_atomic(file, text());
}

std::string RunRecord::new_id() {
  std::random_device device;
  std::string id;
  for (int word = 0; word < 4; ++word) id += fmt::format("{:08x}", device());
  return id;
}

} // namespace fvlm::train
