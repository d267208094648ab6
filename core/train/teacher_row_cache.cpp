#include "train/teacher_row_cache.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/new_file.h"
#include "base/text.h"
#include "model/loading.h"
#include "model/weights/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace fvlm::train {
namespace {

constexpr const char* format = "fvlm-teacher 1";

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

using Pieces = std::vector<std::span<const std::byte>>; // of one tensor

std::string hash_of(const std::map<std::string, Pieces>& tensors) {
  Xxh64 hash;
  for (const auto& [name, pieces] : tensors)
    for (const auto& piece : pieces) hash.update(piece);
  return fmt::format("{:016x}", hash.value());
}

std::string rows_name(size_t term) {
  return fmt::format("rows.{}", term);
}

std::string counts_name(size_t term) {
  return fmt::format("counts.{}", term);
}

} // namespace

void TeacherRowCache::open(const std::string& identity) {
  identity_ = identity;
  samples_.clear();
  mapped_.reset();
  complete_ = false;
  if (!std::filesystem::exists(file_)) return;
  try {
    read();
  } catch (const Error& error) {
    samples_.clear();
    mapped_.reset();
    log_warning("{}\n  the teacher's hidden states are computed again", error.text());
  }
}

void TeacherRowCache::read() {
  const auto refuse = [&](const char* why) { throw Error(ErrorKind::data, why).at(file_.string()); };
  mapped_ = Safetensors::open(file_);
  const auto said = [&](const char* key) {
    const auto found = mapped_->metadata().find(key);
    return found == mapped_->metadata().end() ? std::string() : found->second;
  };
  if (said("format") != format) refuse("no file of a teacher's hidden states");
  if (said("identity") != identity_) refuse("these are another teacher's hidden states, or another plan's");
  std::map<std::string, Pieces> pieces;
  for (const TensorView& tensor : mapped_->tensors()) pieces[std::string(tensor.name)] = {tensor.data};
  if (said("xxh64") != hash_of(pieces)) refuse("the file is damaged");
  const at::Tensor keys = model::tensor_over(mapped_->at("keys"));
  const int64_t count = keys.numel();
  std::vector<Rows> rows(static_cast<size_t>(count));
  for (size_t term = 0; const TensorView* view = mapped_->find(rows_name(term)); ++term) {
    const at::Tensor all = model::tensor_over(*view), counts = model::tensor_over(mapped_->at(counts_name(term)));
    int64_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t labels = counts.const_data_ptr<int64_t>()[i];
      rows[static_cast<size_t>(i)].push_back(all.narrow(0, begin, labels));
      begin += labels;
    }
  }
  for (int64_t i = 0; i < count; ++i)
    samples_[static_cast<uint64_t>(keys.const_data_ptr<int64_t>()[i])] = std::move(rows[static_cast<size_t>(i)]);
  complete_ = said("complete") == "yes";
}

void TeacherRowCache::write(bool complete) {
  complete_ = complete;
  if (samples_.empty()) return;
  try {
    make_folders(file_.parent_path());
    write_file();
  } catch (const Error& error) {
    log_warning("the teacher's hidden states are not on disk: {}", error.text());
  }
}

void TeacherRowCache::write_file() const {
  std::vector<std::pair<uint64_t, const Rows*>> sorted;
  for (const auto& [key, rows] : samples_) sorted.emplace_back(key, &rows);
  std::ranges::sort(sorted);
  const auto count = std::ssize(sorted);
  std::vector<uint64_t> keys;
  for (const auto& [key, rows] : sorted) keys.push_back(key);
  std::vector<TensorInfo> infos{{"keys", DType::i64, {count}}};
  std::map<std::string, Pieces> pieces{{"keys", {std::as_bytes(std::span(keys))}}};
  const size_t terms = sorted.front().second->size();
  std::vector<std::vector<int64_t>> counts(terms);
  for (size_t term = 0; term < terms; ++term) {
    const at::Tensor& first = sorted.front().second->at(term);
    int64_t all = 0;
    for (const auto& [key, rows] : sorted) {
      all += counts[term].emplace_back(rows->at(term).size(0));
      pieces[rows_name(term)].push_back(bytes_of(rows->at(term)));
    }
    pieces[counts_name(term)] = {std::as_bytes(std::span(counts[term]))};
    infos.push_back({counts_name(term), DType::i64, {count}});
    infos.push_back({rows_name(term), model::dtype_of(first.scalar_type()), {all, first.size(1)}});
  }
  SafetensorsWriter writer(file_, infos,
                           {{"format", format},
                            {"identity", identity_},
                            {"complete", complete_ ? "yes" : "no"},
                            {"xxh64", hash_of(pieces)}});
  for (const TensorInfo& info : writer.order())
    for (const auto& piece : pieces.at(info.name)) writer.append(piece);
  writer.commit();
}

const TeacherRowCache::Rows& TeacherRowCache::at(const PackedSample& packed) {
  const auto found = samples_.find(keys_.of(packed));
  if (found == samples_.end())
    throw Error(ErrorKind::data,
                "the teacher's hidden states of {} (source {}) are not known: the stage's data have changed since they "
                "were computed",
                shown(packed.sample->key), shown(packed.sample->source))
        .at(file_.string())
        .advise("remove the file: they are computed again");
  return found->second;
}

} // namespace fvlm::train
