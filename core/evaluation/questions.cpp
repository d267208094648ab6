#include "evaluation/questions.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/media/endings.h"
#include "data/samples/parts.h"
#include "data/samples/sample_content.h"
#include "data/video_text.h"
#include "data/visual_marks.h"
#include "feed/packer.h"

#include <fmt/format.h>

#include <algorithm>

namespace fvlm::evaluation {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct LocatedEntry {
  Entry entry;
  std::string where; // "entry 3", "line 7"
};

std::vector<LocatedEntry> entries_of_lines(const std::string& text, const fs::path& path) {
  std::vector<LocatedEntry> entries;
  int64_t number = 0;
  for (const std::string& line : split(text, '\n')) {
    ++number;
    if (trimmed(line).empty()) continue;
    const std::string where = fmt::format("line {}", number);
    entries.push_back({{parse_json(line, fmt::format("{}, {}", path.string(), where)), std::to_string(entries.size()),
                        path.stem().string()},
                       where});
  }
  return entries;
}

// The document is a list of entries, or an object of them by id. An entry with a list "questions" is one entry for
// each.
std::vector<LocatedEntry> entries_of_document(const std::string& text, const fs::path& path) {
  const json document = parse_json(text, path.string());
  if (!document.is_structured())
    throw Error(ErrorKind::data, "neither a list nor an object of entries").at(path.string());
  std::vector<LocatedEntry> entries;
  for (const auto& [key, entry] : document.items()) {
    const std::string where = fmt::format("entry {}", key);
    const auto questions = entry.is_object() ? entry.find("questions") : entry.end();
    if (!entry.is_object() || questions == entry.end() || !questions->is_array()) {
      entries.push_back({{entry, key, path.stem().string()}, where});
      continue;
    }
    for (const json& question : *questions) {
      json merged = entry;
      merged.erase("questions");
      if (question.is_object()) merged.update(question);
      const std::string id = fmt::format("{}-{}", key, &question - &questions->front());
      entries.push_back({{std::move(merged), id, path.stem().string()}, "entry " + id});
    }
  }
  return entries;
}

std::vector<LocatedEntry> entries_of(const fs::path& path) {
  const std::string text = read_file(path);
  if (text.starts_with("PAR1"))
    throw Error(ErrorKind::data, "this is a Parquet file; questions are read from JSON")
        .at(path.string())
        .advise("pandas.read_parquet(FILE).to_json(\"questions.jsonl\", orient=\"records\", lines=True)");
  return path.extension() == ".jsonl" ? entries_of_lines(text, path) : entries_of_document(text, path);
}

bool is_media(const fs::path& path) {
  const std::string ending = path.extension().string();
  return !ending.empty() && (is_image(ending.substr(1)) || is_video(ending.substr(1)));
}

std::string category_of(const Entry& entry, const std::string& key) {
  const auto found = entry.object.find(key);
  if (found == entry.object.end() || found->is_null()) broken(fmt::format("there is no '{}' to tell it by", key));
  return found->is_string() ? found->get<std::string>() : found->dump();
}

} // namespace

const std::multimap<std::string, fs::path>& MediaFolder::below() const {
  std::call_once(listed_, [&] {
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      const fs::path& path = entry.path();
      below_.emplace(path.filename().string(), path);
      if (is_media(path)) below_.emplace(path.stem().string(), path);
    }
  });
  return below_;
}

fs::path MediaFolder::find(const std::string& name) const {
  if (folder_.empty())
    throw Error(ErrorKind::data, "it is about '{}', and no media folder is given", name)
        .advise("name the folder with --media");
  const fs::path relative = fs::path(name).lexically_normal();
  if (relative.is_absolute() || relative.string().starts_with(".."))
    throw Error(ErrorKind::data, "'{}' is not below the media folder", name);
  if (fs::exists(folder_ / relative)) return folder_ / relative;
  std::vector<fs::path> found;
  const auto [first, last] = below().equal_range(relative.filename().string());
  for (auto at = first; at != last; ++at) {
    const fs::path parent = at->second.lexically_relative(folder_).parent_path();
    const std::string wanted = relative.parent_path().string();
    if (wanted.empty() || parent == wanted || parent.string().ends_with("/" + wanted)) found.push_back(at->second);
  }
  if (found.size() == 1) return found.front();
  if (found.empty())
    throw Error(ErrorKind::data, "there is no '{}' here, nor in a folder below", name).at(folder_.string());
  throw Error(ErrorKind::data, "{} files are called '{}', {} among them", found.size(), name, found.front().string())
      .at(folder_.string())
      .advise("name the folder that has just the right one");
}

Questions::Questions(QuestionsRequest request, std::shared_ptr<const Tokenizer> tokenizer,
                     std::optional<VideoDecoder> decoder)
    : request_(std::move(request)), tokenizer_(std::move(tokenizer)),
      chat_(*tokenizer_, request_.visual_rows, request_.chat_template), decoder_(std::move(decoder)),
      folder_(request_.media) {
  mix_.system = request_.system;
  request_.media_options.video = decoder_ ? &*decoder_ : nullptr;
  if (!request_.media.empty() && !fs::is_directory(request_.media))
    throw Error(ErrorKind::data, "there is no such media folder").at(request_.media.string());
  for (const fs::path& file : request_.files) add(file, form_named(request_.form));
}

void Questions::add(const fs::path& file, const Form& form) {
  for (auto& [entry, where] : entries_of(file)) {
    try {
      if (!entry.object.is_object()) wrong_type("it", entry.object, "an object");
      if (!is_of_split(entry)) continue;
      LocatedQuestion located{file.string(), entry.id, form.read(entry)};
      if (!request_.category.empty()) located.question.sample["source"] = category_of(entry, request_.category);
      parse_sample_content(Parts(located.question.sample, as_named), {}, {}, mix_,
                           request_.visual_rows); // throws for an invalid sample
      questions_.push_back(std::move(located));
    } catch (const Error& error) {
      throw Error(ErrorKind::data, error.what())
          .at("{}, {}", file.string(), where)
          .advise(error.advice().empty() ? fmt::format("the form {}: {}", form.name, form.summary) : error.advice());
    }
  }
}

bool Questions::is_of_split(const Entry& entry) const {
  return request_.split.empty() ||
         Parts(entry.object, as_named).text("split").value_or(request_.split) == request_.split;
}

int64_t Questions::frame_elements() const {
  return 3 * request_.media_options.image_size * request_.media_options.image_size;
}

MediaFile Questions::media_of(const LocatedQuestion& located) const {
  return {folder_.find(located.question.media), request_.media_options, located.question.span};
}

Sample Questions::measure(const DrawnSample& drawn) const {
  const LocatedQuestion& located = at(drawn);
  const FramePreparation preparation = request_.media_options.preparation();
  SampleContent parsed =
      parse_sample_content(Parts(located.question.sample, as_named), {}, {}, mix_, request_.visual_rows);
  Sample sample{.key = located.id,
                .source = parsed.source,
                .rows_per_frame = request_.visual_rows.per_frame,
                .correct_choice = parsed.correct_choice,
                .answers = parsed.answers};
  bool is_video = false;
  std::string words; // around its frames
  if (!located.question.media.empty()) {
    const MediaFile media = media_of(located);
    sample.frames = media.frames();
    sample.copies = media.copies();
    sample.media.tiles = media.tiles();
    sample.media.times = media.times();
    is_video = !media.times().empty() || (media.tiles().empty() && media.frames() > media.copies());
    if (!media.times().empty() && preparation.has_video_text()) words = video_text(media.times(), media.seconds());
  }
  for (Conversation& conversation : parsed.conversations) {
    if (request_.visual_rows.in_place && !located.question.media.empty())
      mention_frames(conversation.turns, is_video ? video_mark : image_mark);
    if (!words.empty()) write_video(conversation.turns, words);
    ChatTokens tokens = chat_.encode(conversation.turns, conversation.system, conversation.tools.get());
    sample.texts.push_back({std::move(tokens.ids), std::move(tokens.answer_mask)});
  }
  MarkedFrames frames{sample.frames, sample.rows_per_frame, !is_video, {}, {}};
  if (preparation.has_tile_text()) add_tile_texts(frames, *tokenizer_, preparation.tile_form(), sample.media.tiles);
  if (request_.visual_rows.in_place)
    for (SampleText& text : sample.texts) text.placeholders = expand_marks(text.ids, text.answer_mask, frames);
  return sample;
}

void Questions::decode(const DrawnSample& drawn, const Sample& sample, std::span<float> frames) const {
  if (sample.frames > 0) media_of(at(drawn)).decode(frames);
}

std::unique_ptr<SampleSet> open_questions(const plan::EvaluationSet& set, const QuestionsRequest& request,
                                          std::shared_ptr<const Tokenizer> tokenizer, Registry& registry) {
  OpenedSource source;
  source.samples = std::make_shared<const Questions>(
      request, tokenizer, request.media.empty() ? std::nullopt : choose_video_decoder(registry, {}));
  source.tokenizer = std::move(tokenizer);
  source.image_size = request.media_options.image_size;
  source.processor = request.media_options.processor;
  source.mix.sources.resize(1);
  source.source_names = {set.name};
  source.packer = [&](const PackSize& capacity) { return feed::choose_packer(registry, {}, capacity); };
  return std::make_unique<SampleSet>(set, std::move(source), default_pack);
}

} // namespace fvlm::evaluation
