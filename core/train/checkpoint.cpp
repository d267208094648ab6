#include "train/checkpoint.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/new_file.h"
#include "base/text.h"
#include "model/loading.h"
#include "train/groups.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unistd.h>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* state_file = "training_state/state.json";
constexpr const char* optimizer_file = "training_state/optimizer.safetensors";
constexpr const char* checksums_file = "training_state/checksums.txt";

// The same content in memory of the host's own.
at::Tensor copied(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor.clone() : tensor.cpu();
}

std::string hex(uint64_t number) {
  return fmt::format("{:016x}", number);
}

uint64_t hash_of(const fs::path& file) {
  return xxh64(MappedFile::open(file)->text());
}

// Every file below the folder but the list itself, sorted.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) files.push_back(fs::relative(entry.path(), folder).generic_string());
  std::erase(files, checksums_file);
  std::sort(files.begin(), files.end());
  return files;
}

// Its name then.
std::string rename_aside(const fs::path& folder, const char* why) {
  fs::path aside = folder;
  aside += why;
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  fs::rename(folder, aside, ignored);
  return aside.filename();
}

// A line a file, "HASH BYTES PATH", and the hash of these lines.
std::string checksums_of(const fs::path& folder) {
  std::string lines;
  for (const std::string& file : files_below(folder))
    lines += fmt::format("{} {} {}\n", hex(hash_of(folder / file)), fs::file_size(folder / file), file);
  return lines + hex(xxh64(lines)) + "\n";
}

} // namespace

Snapshot snapshot(const ModelDescription& description, const model::Model& model, const Optimization& optimization,
                  const RunState& state) {
  Snapshot shot{description, {}, {}, state};
  shot.description.stage = state.stage;
  shot.description.step = state.step;
  shot.description.plan_hash = state.plan_hash;
  for (const ops::Parameter& parameter : model.parameters().all())
    if (!parameter.in_base) shot.parameters[directory_name(parameter.name)] = copied(parameter.value);
  optimization.gather_state(
      [&](const std::string& name, const at::Tensor& all) { shot.optimizer[name] = copied(all); });
  return shot;
}

void write_checkpoint(const fs::path& folder, const Snapshot& snapshot) {
  ModelDirectoryWriter writer(folder, snapshot.description, [&](const std::string& name) {
    return model::dtype_of(snapshot.parameters.at(name).scalar_type());
  });
  for (const TensorInfo& tensor : writer.order()) {
    const at::Tensor flat = snapshot.parameters.at(tensor.name).contiguous();
    writer.append({static_cast<const std::byte*>(flat.data_ptr()), static_cast<size_t>(flat.nbytes())});
  }
  make_folders(writer.folder() / "training_state");
  model::write_tensors(writer.folder() / optimizer_file, snapshot.optimizer);
  write_file_atomic(writer.folder() / state_file, snapshot.state.text());
  writer.finish();
  write_file_atomic(writer.folder() / checksums_file, checksums_of(writer.folder()));
  writer.commit();
}

void verify_checkpoint(const fs::path& folder) {
  const std::string expected = read_file(folder / checksums_file);
  const std::string found = checksums_of(folder);
  if (found == expected) return;
  // Which files: lines that stand in one list alone.
  const auto lines_of = [](const std::string& text) {
    auto lines = split(text, '\n');
    std::sort(lines.begin(), lines.end());
    return lines;
  };
  const auto wanted = lines_of(expected), there = lines_of(found);
  std::vector<std::string> different;
  std::set_symmetric_difference(wanted.begin(), wanted.end(), there.begin(), there.end(),
                                std::back_inserter(different));
  std::vector<std::string> files;
  for (const std::string& line : different)
    if (const auto words = split(line, ' '); words.size() >= 3) files.push_back(words[2]);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  for (std::string& file : files) file = shown(file);
  throw Error(ErrorKind::data, files.empty() ? "the list of checksums is damaged"
                                             : fmt::format("not what was written: {}", join(files, ", ")))
      .at(folder.string());
}

RunState read_state(const fs::path& checkpoint) {
  const fs::path file = checkpoint / state_file;
  if (!fs::exists(file))
    throw Error(ErrorKind::data, "this is no checkpoint of a training run: it has no " + std::string(state_file))
        .at(checkpoint.string());
  return RunState::parse(read_file(file), file.string());
}

void load_checkpoint(const fs::path& checkpoint, model::Model& model, Optimization& optimization) {
  model::load_weights(ModelDirectory::open(checkpoint), model,
                      [](const ops::Parameter& parameter) { return !parameter.in_base; });
  optimization.adopt_values();
  const auto file = Safetensors::open(checkpoint / optimizer_file);
  for (auto& [name, tensor] : optimization.state()) {
    const TensorView& saved = file.at(name);
    if (saved.shape != std::vector<int64_t>{optimization.elements()})
      throw Error(ErrorKind::data, fmt::format("{} has {} numbers, and this stage's optimizer {}", shown(name),
                                               saved.elements(), optimization.elements()))
          .at(checkpoint.string())
          .advise("resume with the plan that the run was begun with");
    const dist::Slice& own = optimization.own_slice();
    at::Tensor(tensor).copy_(model::tensor_over(saved).narrow(0, own.begin, own.length));
  }
  optimization.resume_at(read_state(checkpoint).optimizer_steps);
}

fs::path StageFolder::of(int64_t step) const {
  return path_ / fmt::format("step-{:06}", step);
}

std::vector<int64_t> StageFolder::steps() const {
  std::vector<int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename();
    int64_t step = 0;
    if (!name.starts_with("step-")) continue;
    const auto [end, error] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    if (error == std::errc() && end == name.data() + name.size()) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void StageFolder::make_room(const fs::path& folder) {
  fs::path gone = folder;
  gone += ".removed"; // at once, so that nobody finds half of it
  std::error_code ignored;
  fs::remove_all(gone, ignored);
  fs::rename(folder, gone, ignored);
  fs::remove_all(gone, ignored);
}

void StageFolder::tidy() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename();
    const bool is_checkpoint = name.starts_with("step-"), is_reference = name.starts_with("reference.");
    const bool is_partial = name.find(".partial-") != name.npos, is_removed = name.find(".removed") != name.npos;
    const bool is_link = entry.is_symlink(ignored) && (name.starts_with(".latest-") || name.starts_with(".best-"));
    if ((is_checkpoint && (is_partial || is_removed)) || (is_reference && is_partial) || is_link)
      fs::remove_all(entry.path(), ignored);
  }
}

std::optional<int64_t> StageFolder::newest() const {
  auto steps = this->steps();
  for (; !steps.empty(); steps.pop_back()) {
    const fs::path folder = of(steps.back());
    try {
      verify_checkpoint(folder);
      return steps.back();
    } catch (const Error& error) {
      log_warning("{}\n  {}; this one is kept as {}", error.text(),
                  steps.size() > 1 ? "the checkpoint before it is taken" : "the stage has no other checkpoint",
                  rename_aside(folder, ".damaged"));
    }
  }
  return {};
}

void StageFolder::set_aside(int64_t step) const {
  const auto all = steps();
  for (auto later = all.rbegin(); later != all.rend() && *later > step; ++later)
    log_warning("{} lies behind the checkpoint that the run goes back to; it is kept as {}", of(*later).string(),
                rename_aside(of(*later), ".aside"));
}

std::vector<std::pair<double, int64_t>> StageFolder::scored() const {
  std::vector<std::pair<double, int64_t>> scored;
  for (const int64_t step : steps()) {
    try {
      if (const auto score = read_state(of(step)).score) scored.emplace_back(*score, step);
    } catch (const Error&) { // damaged: nothing to keep it for
    }
  }
  std::sort(scored.rbegin(), scored.rend());
  return scored;
}

void StageFolder::prune(int64_t last, int64_t best) const {
  const auto all = steps();
  std::vector<int64_t> rest(all.begin(), all.end() - std::min(last, static_cast<int64_t>(all.size())));
  if (best > 0) {
    const auto by_score = scored();
    for (size_t i = 0; i < by_score.size() && i < static_cast<size_t>(best); ++i) std::erase(rest, by_score[i].second);
  }
  for (const int64_t step : rest) make_room(of(step));
}

void StageFolder::link() const {
  const auto point = [&](const char* name, std::optional<int64_t> step) {
    const fs::path link = path_ / name, fresh = path_ / fmt::format(".{}-{}", name, getpid());
    std::error_code failed;
    if (const auto there = fs::symlink_status(link, failed); fs::exists(there) && !fs::is_symlink(there)) return;
    if (!step) {
      fs::remove(link, failed);
      return;
    }
    const fs::path target = of(*step).filename();
    if (fs::read_symlink(link, failed) == target && !failed) return;
    fs::remove(fresh, failed);
    fs::create_directory_symlink(target, fresh, failed);
    if (!failed) fs::rename(fresh, link, failed);
    if (failed) fs::remove(fresh, failed);
  };
  const auto all = steps();
  const auto by_score = scored();
  point("latest", all.empty() ? std::nullopt : std::optional(all.back()));
  point("best", by_score.empty() ? std::nullopt : std::optional(by_score.front().second));
}

} // namespace fvlm::train
