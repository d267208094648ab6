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
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unistd.h>

namespace fvlm::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* state_file = "training_state/state.json";
constexpr const char* optimizer_file = "training_state/optimizer.safetensors";
constexpr const char* checksums_file = "training_state/checksums.txt";
constexpr std::string_view replaced = ".replaced"; // behind the name of a checkpoint whose place a new one takes

// A slice of the optimizer's state. The slices of all ranks in this order are the whole.
std::string slice_file(int64_t rank, int64_t ranks) {
  return fmt::format("training_state/optimizer-{:05}-of-{:05}.safetensors", rank + 1, ranks);
}

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
  std::ranges::sort(files);
  return files;
}

fs::path beside(const fs::path& folder, std::string_view ending) {
  fs::path path = folder;
  path += ending;
  return path;
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

WrittenFile written(const fs::path& file) {
  return {hash_of(file), fs::file_size(file)};
}

// A line a file, "HASH BYTES PATH", and the hash of these lines. `known`: files that are not read again.
std::string checksums_of(const fs::path& folder, WrittenFiles known = {}) {
  for (const std::string& file : files_below(folder))
    if (!known.contains(file)) known[file] = written(folder / file);
  std::string lines;
  for (const auto& [file, found] : known) lines += fmt::format("{} {} {}\n", hex(found.hash), found.bytes, file);
  return lines + hex(xxh64(lines)) + "\n";
}

// All but the optimizer's state.
void write_model(ModelDirectoryWriter& writer, const Snapshot& snapshot) {
  for (const TensorInfo& tensor : writer.order()) {
    const at::Tensor flat = snapshot.parameters.at(tensor.name).contiguous();
    writer.append({static_cast<const std::byte*>(flat.data_ptr()), static_cast<size_t>(flat.nbytes())});
  }
}

void finish(ModelDirectoryWriter& writer, const Snapshot& snapshot, const WrittenFiles& of_others) {
  write_file_atomic(writer.folder() / state_file, snapshot.state.text());
  writer.finish();
  write_file_atomic(writer.folder() / checksums_file, checksums_of(writer.folder(), of_others));
  writer.commit();
}

void write_first_part(const fs::path& folder, const Snapshot& snapshot, CheckpointExchange& exchange,
                      const std::function<void(int64_t step)>& before_part) {
  std::optional<ModelDirectoryWriter> writer;
  try {
    writer.emplace(folder, snapshot.description, [&](const std::string& name) {
      return model::dtype_of(snapshot.parameters.at(name).scalar_type());
    });
    make_folders(writer->folder() / "training_state");
  } catch (...) {
    exchange.announce("");
    throw;
  }
  exchange.announce(fs::absolute(writer->folder()).string());
  std::exception_ptr failure; // thrown when nobody writes into the folder any more
  try {
    if (before_part) before_part(snapshot.state.step);
    model::write_tensors(writer->folder() / slice_file(0, exchange.ranks()), snapshot.optimizer);
    write_model(*writer, snapshot);
  } catch (...) {
    failure = std::current_exception();
  }
  const WrittenFiles parts = exchange.wait_for_parts();
  if (failure) std::rethrow_exception(failure);
  finish(*writer, snapshot, parts);
}

void write_other_part(const Snapshot& snapshot, CheckpointExchange& exchange,
                      const std::function<void(int64_t step)>& before_part) {
  const fs::path folder = exchange.folder();
  if (folder.empty()) return;
  const std::string file = slice_file(exchange.rank(), exchange.ranks());
  WrittenFile part;
  try {
    if (before_part) before_part(snapshot.state.step);
    model::write_tensors(folder / file, snapshot.optimizer);
    part = written(folder / file);
  } catch (const Error& error) {
    return exchange.report_failure(error.text());
  } catch (const std::exception& error) { // the standard library's own, of files
    return exchange.report_failure(error.what());
  }
  exchange.report(file, part);
}

// The files of the optimizer's state in a checkpoint: one, or a slice for each rank that wrote it.
std::vector<Safetensors> state_files(const fs::path& checkpoint) {
  if (fs::exists(checkpoint / optimizer_file)) return {Safetensors::open(checkpoint / optimizer_file)};
  std::vector<Safetensors> files;
  std::error_code absent;
  const std::string first = fs::path(slice_file(0, 1)).filename().string().substr(0, 16); // "optimizer-00001-"
  for (const auto& entry : fs::directory_iterator(checkpoint / "training_state", absent)) {
    const std::string name = entry.path().filename();
    const size_t of = name.find("-of-");
    if (!name.starts_with(first) || of == std::string::npos) continue;
    const int64_t ranks = std::atoll(name.c_str() + of + 4);
    for (int64_t rank = 0; rank < ranks; ++rank)
      files.push_back(Safetensors::open(checkpoint / slice_file(rank, ranks)));
    break;
  }
  if (files.empty())
    throw Error(ErrorKind::data, "the checkpoint has no state of an optimizer")
        .at((checkpoint / optimizer_file).string());
  return files;
}

// Copies the part of a state that is this rank's slice.
void load_slice(const std::vector<Safetensors>& files, const std::string& name, const dist::Slice& own,
                const at::Tensor& into) {
  int64_t begin = 0; // of the file's slice
  for (const Safetensors& file : files) {
    const TensorView& saved = file.at(name);
    const int64_t end = begin + saved.shape[0], from = std::max(begin, own.begin), to = std::min(end, own.end());
    if (from < to)
      at::Tensor(into)
          .narrow(0, from - own.begin, to - from)
          .copy_(model::tensor_over(saved).narrow(0, from - begin, to - from));
    begin = end;
  }
}

} // namespace

Snapshot snapshot(const ModelDescription& description, const model::Model& model, const Optimization& optimization,
                  const RunState& state, bool is_first, const UntrainedWeights& untrained) {
  Snapshot shot{description, {}, {}, state};
  shot.description.stage = state.stage;
  shot.description.step = state.step;
  shot.description.plan_hash = state.plan_hash;
  for (const auto& [name, share] : optimization.share_of_state()) shot.optimizer[name] = copied(share);
  if (!is_first) return shot;
  for (const ops::Parameter& parameter : model.parameters().all()) {
    if (parameter.in_base) continue;
    const std::string name = directory_name(parameter.name);
    const auto kept = untrained.find(name);
    shot.parameters[name] = kept == untrained.end() ? copied(model::in_file(parameter, parameter.value)) : kept->second;
  }
  return shot;
}

void write_checkpoint(const fs::path& folder, const Snapshot& snapshot) {
  ModelDirectoryWriter writer(folder, snapshot.description, [&](const std::string& name) {
    return model::dtype_of(snapshot.parameters.at(name).scalar_type());
  });
  write_model(writer, snapshot);
  make_folders(writer.folder() / "training_state");
  model::write_tensors(writer.folder() / optimizer_file, snapshot.optimizer);
  finish(writer, snapshot, {});
}

void write_checkpoint(const fs::path& folder, const Snapshot& snapshot, CheckpointExchange& exchange,
                      const std::function<void(int64_t step)>& before_part) {
  exchange.begin(fmt::format("stage {}, step {}", snapshot.state.stage, snapshot.state.step));
  if (exchange.is_first())
    write_first_part(folder, snapshot, exchange, before_part);
  else
    write_other_part(snapshot, exchange, before_part);
}

void verify_checkpoint(const fs::path& folder) {
  const std::string expected = read_file(folder / checksums_file);
  const std::string found = checksums_of(folder);
  if (found == expected) return;
  // Which files: lines that stand in one list alone.
  const auto lines_of = [](const std::string& text) {
    auto lines = split(text, '\n');
    std::ranges::sort(lines);
    return lines;
  };
  const auto wanted = lines_of(expected), there = lines_of(found);
  std::vector<std::string> different;
  std::set_symmetric_difference(wanted.begin(), wanted.end(), there.begin(), there.end(),
                                std::back_inserter(different));
  std::vector<std::string> files;
  for (const std::string& line : different)
    if (const auto words = split(line, ' '); words.size() >= 3) files.push_back(words[2]);
  std::ranges::sort(files);
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
  const auto files = state_files(checkpoint);
  const auto has = [&](const std::string& name) { return files.front().find(name) != nullptr; };
  const auto state = optimization.state();
  for (auto& [name, tensor] : state) {
    if (!has(name))
      throw Error(ErrorKind::data, "this stage's optimizer keeps '{}', which the checkpoint does not have", name)
          .at(checkpoint.string())
          .advise("undo the change of the optimizer or of the precision, or begin the stage anew with these weights: "
                  "--from with this folder");
    int64_t elements = 0;
    for (const Safetensors& file : files)
      if (const auto& shape = file.at(name).shape; shape.size() == 1) elements += shape[0];
    if (elements != optimization.elements())
      throw Error(ErrorKind::data, "{} has {} numbers, and this stage's optimizer {}", shown(name), elements,
                  optimization.elements())
          .at(checkpoint.string())
          .advise("resume with the plan that the run was begun with");
    load_slice(files, name, optimization.own_slice(), tensor);
  }
  for (const auto& [name, tensor] : optimization.shared_state()) {
    if (!has(name)) continue;
    const at::Tensor apart = at::zeros_like(tensor);
    load_slice(files, name, optimization.own_slice(), apart);
    tensor.add_(apart);
  }
  constexpr const char* master = Optimization::master_weights;
  if (!state.contains(master) && has(master)) // what was rounded is float32 now
    load_slice(files, master, {0, optimization.elements()}, optimization.values());
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
  std::ranges::sort(steps);
  return steps;
}

void StageFolder::remove(const fs::path& folder) {
  const fs::path gone = beside(folder, ".removed");
  std::error_code ignored;
  fs::remove_all(gone, ignored);
  fs::rename(folder, gone, ignored);
  fs::remove_all(gone, ignored);
}

void StageFolder::make_room(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return;
  forget_replaced(folder);
  fs::rename(folder, beside(folder, replaced), ignored);
}

void StageFolder::forget_replaced(const fs::path& folder) {
  remove(beside(folder, replaced));
}

void StageFolder::restore_replaced(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) fs::rename(beside(folder, replaced), folder, ignored);
}

void StageFolder::tidy() const {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename();
    const bool is_checkpoint = name.starts_with("step-"), is_reference = name.starts_with("reference.");
    const bool is_partial = name.find(".partial-") != name.npos, is_removed = name.find(".removed") != name.npos;
    const bool is_link = entry.is_symlink(ignored) && (name.starts_with(".latest-") || name.starts_with(".best-"));
    if (is_checkpoint && name.ends_with(replaced)) {
      const fs::path folder = path_ / name.substr(0, name.size() - replaced.size());
      restore_replaced(folder);
      forget_replaced(folder);
    }
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
      const auto score = read_state(of(step)).score;
      if (score && !std::isnan(*score)) scored.emplace_back(*score, step);
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
  for (const int64_t step : rest) remove(of(step));
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
