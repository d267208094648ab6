#include "base/error.h"
#include "base/text.h"
#include "data/boxes.h"
#include "data/document.h"
#include "data/media/decode_image.h"
#include "data/samples/error_context.h"
#include "data/samples/frames.h"
#include "data/samples/input_content.h"
#include "data/samples/named_media.h"
#include "data/samples/npy.h"
#include "data/samples/objects.h"
#include "data/samples/prompt_content.h"
#include "data/samples/sample_reader.h"
#include "data/unicode.h"
#include "data/video_text.h"
#include "data/visual_marks.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace fvlm {
namespace {

constexpr uint64_t max_text_bytes = uint64_t{4} << 20; // of KEY.txt

const Member* member_named(const ShardSample& sample, std::string_view name) {
  auto found = std::find_if(sample.members.begin(), sample.members.end(),
                            [&](const Member& member) { return member.name == name; });
  return found == sample.members.end() ? nullptr : &*found;
}

std::string underscored(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::string plain_text_of(const Shard& shard, const Member& member) {
  if (member.size > max_text_bytes)
    broken(fmt::format("KEY.{} has {} bytes, more than the {} of a text", member.name, member.size, max_text_bytes));
  const auto bytes = shard.read(member);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (ValidUtf8(text).view() != text) broken(fmt::format("KEY.{} is no UTF-8", member.name));
  return trimmed(text);
}

// For files such as my.photo.jpg; empty where there is none.
std::string rule_of_keys(const ShardSample& sample) {
  const Member* dotted = dotted_member(sample);
  if (!dotted) return "";
  const std::string key = sample.key.substr(sample.key.rfind('/') + 1);
  return fmt::format(
      "a sample's key ends at the first dot of the file name, so the key of '{0}.{1}' is '{0}': take the "
      "other dots out of the names, as in {2}.jpg with {2}.json",
      key, dotted->name, underscored(key + "." + dotted->name.substr(0, dotted->name.rfind('.'))));
}

// Of the images whose cells `preprocess` wrote to an array.
std::vector<TileGrid> cells_in(const Parts& parts) {
  constexpr int64_t most_cells = 1 << 20; // along a side of an image
  const nlohmann::json* found = parts.find("image_grids");
  if (!found) return {};
  const auto side = [](const nlohmann::json& value) {
    return value.is_number_integer() && value >= 1 && value <= most_cells;
  };
  std::vector<TileGrid> tiles;
  bool is_good = found->is_array();
  for (const auto& image : is_good ? *found : nlohmann::json::array()) {
    const bool is_video = image.is_array() && image.size() == 5;
    is_good = is_good && image.is_array() && (image.size() == 2 || is_video) && side(image[0]) && side(image[1]);
    is_good = is_good && (!is_video || (side(image[2]) && side(image[3]) && image[4].is_number()));
    if (is_good) tiles.push_back({image[0], image[1], 0, 0, true});
    if (is_good && is_video)
      tiles.back().steps = image[2], tiles.back().step_frames = image[3], tiles.back().step_seconds = image[4];
  }
  if (!is_good)
    broken(fmt::format("{} is no list of pairs of whole numbers, the rows and columns of each image's cells, and of "
                       "five numbers of videos",
                       parts.name("image_grids")));
  return tiles;
}

// For a text that mentions no frames. Where videos are not read as images are, numbered frames are then single images.
std::string marks_of(const FoundFrames& found, const Sample& sample, bool has_own_videos) {
  if (found.still) return std::string(image_mark);
  if (!has_own_videos || found.media.kind == Media::Kind::video || sample.is_video_of_cells())
    return std::string(video_mark);
  const size_t images =
      found.media.kind == Media::Kind::pixels ? sample.media.tiles.size() : found.media.members.size();
  std::string marks;
  for (size_t i = 0; i < images; ++i) marks += image_mark;
  return marks;
}

// Behind the first `count` tokens: where the next token stands.
std::vector<TokenId>::const_iterator end_of_tokens(const std::vector<TokenId>& ids, int64_t count) {
  return std::find_if(ids.begin(), ids.end(), [&](TokenId id) { return id >= 0 && count-- == 0; });
}

int64_t answers(const SampleText& text) {
  return std::accumulate(text.answer_mask.begin(), text.answer_mask.end(), int64_t{0});
}

bool learns_nothing(const Conversation& talk) {
  return std::ranges::none_of(talk.turns, [](const Turn& turn) { return turn.role == "assistant" && turn.is_learnt; });
}

} // namespace

std::optional<std::string> caption_file_of(const Shard& shard, const ShardSample& sample) {
  const Member* txt = member_named(sample, "txt");
  return txt ? std::optional(plain_text_of(shard, *txt)) : std::nullopt;
}

SampleReader::SampleReader(const plan::Mix& mix, const Tokenizer& tokenizer, const FramePreparation& frames,
                           const VideoDecoder* video, const plan::VisualRows& visual_rows)
    : mix_(mix), tokenizer_(tokenizer), chat_(tokenizer, visual_rows, mix.chat_template),
      questions_(tokenizer, mix.questions.value_or(plan::QuestionForm())), embedding_tokens_(tokenizer),
      frames_(frames), video_(video), visual_rows_(visual_rows),
      has_tile_text_(visual_rows.in_place && frames.has_tile_text()),
      box_form_(mix.boxes ? mix.boxes : box_form_of(tokenizer.folder())) {
  if (mix.boxes) require_box_tokens(tokenizer, *mix.boxes);
  if (mix.documents) document_start_ = document_start(tokenizer);
  if (mix.questions || visual_rows.max_bytes > 0) questions_.require_tokens();
  // Throws where tokenizer or connector lack what it needs.
  if (has_tile_text_) tile_text(tokenizer, frames.tile_form(), {}, visual_rows.per_frame, 0);
}

Sample SampleReader::measure(const Shard& shard, const ShardSample& members, const plan::Source& source) const {
  return with_sample_context(shard, members.key, [&] { return measured(shard, members, source); });
}

Sample SampleReader::measured(const Shard& shard, ShardSample members, const plan::Source& source) const {
  if (!members.damage.empty()) broken(shard.names_media() ? members.damage : "a part of it is lost: " + members.damage);
  const auto json = shard.json(members);
  if (!json && !member_named(members, "txt")) {
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min<size_t>(members.members.size(), 5); ++i) names.push_back(members.members[i].name);
    throw Error(ErrorKind::data, "it has neither KEY.json nor KEY.txt among its {}: {}",
                counted(std::ssize(members.members), "member"), fmt::join(names, ", "))
        .advise(rule_of_keys(members));
  }
  const nlohmann::json object = json.value_or(nlohmann::json::object());
  if (auto found = object.find(broken_key); found != object.end())
    broken("it was broken when its shard was written: " + text_in(*found, fmt::format("'{}'", broken_key)));
  if (auto found = object.find(dropped_key); found != object.end())
    return {.key = members.key,
            .dropped = text_in(*found, fmt::format("'{}'", dropped_key)),
            .lacks_answer = object.contains(lacks_answer_key),
            .exceeds_frames = object.contains(exceeds_frames_key)};
  const std::optional<std::string> caption = caption_file_of(shard, members);
  const Parts parts(object, source.fields);
  if (has_inputs(parts)) return measure_inputs(shard, std::move(members), parts, source);
  if (shard.names_media()) add_named_media(shard, parts, members);
  SampleContent parsed = parse_sample_content(parts, caption, source, mix_, visual_rows_);
  if (parsed.objects) write_objects(shard, members, parsed);
  Sample sample{.key = members.key,
                .source = parsed.source,
                .rows_per_frame = visual_rows_.per_frame,
                .correct_choice = parsed.correct_choice,
                .is_desirable = parsed.is_desirable,
                .answers = parsed.answers,
                .has_short_answer = !parsed.tokens.empty() && object.contains(short_answer_key)};
  auto frame_count = parsed.frame_count;
  sample.media.tiles = cells_in(parts);
  std::optional<FoundFrames> found;
  if (visual_rows_.in_place) {
    found = find_frames(members);
    for (Conversation& conversation : parsed.conversations) {
      if (found->media.kind == Media::Kind::none) break;
      mention(*found, sample, conversation.turns, "\n");
    }
  }
  const bool has_times = found && has_video_text(*found) && parsed.tokens.empty();
  if (has_times) {
    count_frames(shard, members, std::move(*found), frame_count, source.text_only(), sample);
    const std::string text = video_text(sample.media.times, sample.media.seconds);
    for (Conversation& conversation : parsed.conversations) write_video(conversation.turns, text);
  }
  if (parsed.question) {
    encode_question(*parsed.question, source.text_only(), sample);
  } else if (visual_rows_.max_bytes > 0 && !source.text_only()) {
    throw Error(ErrorKind::data, "it has no context and question, of which the encoder reads the bytes")
        .advise("the source's `fields` says what they are called; text-only samples lie in a source { text = ... }");
  } else {
    if (mix_.teacher_prompt) sample.teacher_texts = teacher_texts(parts, parsed);
    encode(std::move(parsed), sample);
  }
  if (sample.dropped.empty()) fit_teacher_texts(sample);
  if (!sample.dropped.empty() || !sample.bytes.empty()) return sample;
  if (!has_times)
    count_frames(shard, members, found ? std::move(*found) : find_frames(members), frame_count, source.text_only(),
                 sample);
  if (visual_rows_.in_place && sample.dropped.empty()) place_visual_rows(sample);
  return sample;
}

// Frames that no turn mentions get a place in the first one, before its text and what stands `behind` them.
void SampleReader::mention(FoundFrames& found, const Sample& sample, std::vector<Turn>& turns,
                           std::string_view behind) const {
  found.is_video = found.is_video || (found.media.kind == Media::Kind::images && !found.still &&
                                      frames_.has_own_videos() && mentions_video(turns));
  mention_frames(turns, marks_of(found, sample, frames_.has_own_videos()), behind);
}

// Whether they are a video whose times the text tells, which are known once its frames are counted.
bool SampleReader::has_video_text(const FoundFrames& found) const {
  return visual_rows_.in_place && frames_.has_video_text() &&
         (found.is_video || found.media.kind == Media::Kind::video);
}

void SampleReader::write_objects(const Shard& shard, const ShardSample& members, SampleContent& content) const {
  for (const std::string& answer : content.answers)
    if (answer.find(box_mark) != std::string::npos)
      broken(fmt::format("'answers' has a {}, and the places of boxes are in turns", box_mark));
  fvlm::write_objects(*content.objects, box_form_, boxed_images(shard, members, frames_), content.conversations);
}

void SampleReader::place_visual_rows(Sample& sample) const {
  MarkedFrames frames{sample.frames,
                      sample.rows_per_frame,
                      sample.media.members.size() == 1 && sample.media.kind == Media::Kind::images,
                      {},
                      {}};
  if (has_tile_text_) add_tile_texts(frames, tokenizer_, frames_.tile_form(), sample.media.tiles);
  for (SampleText& text : sample.texts) {
    text.placeholders = expand_marks(text.ids, text.answer_mask, frames);
    if (has_tile_text_) limit(text, sample);
  }
  if (has_tile_text_ && sample.dropped.empty()) fit_teacher_texts(sample);
}

// Of a mix of documents: all of a sample, from the token that documents start with.
void SampleReader::encode_document(const std::optional<std::string>& document, Sample& sample) const {
  const TokenId start = *document_start_;
  if (document) {
    std::vector<TokenId> ids = tokenizer_.encode(*document, SpecialTokens::as_text);
    sample.texts.push_back({std::move(ids), {}});
    sample.texts.back().answer_mask.assign(sample.texts.back().ids.size(), 1);
  }
  for (SampleText& text : sample.texts) {
    if (!text.ids.empty() && text.ids.front() == start) continue;
    text.ids.insert(text.ids.begin(), start);
    text.answer_mask.insert(text.answer_mask.begin(), 1);
  }
}

ChatTokens SampleReader::encode_turns(const Conversation& talk) const {
  try {
    return chat_.encode(talk.turns, talk.system, talk.tools.get());
  } catch (const Error& error) {
    if (talk.turns.empty() || talk.turns.front().role != "assistant") throw;
    throw Error(error.kind(), "its first turn is an answer, and the chat template takes none without a question: {}",
                error.text());
  }
}

void SampleReader::encode(SampleContent parsed, Sample& sample) const {
  if (std::ranges::any_of(parsed.conversations, learns_nothing)) {
    sample.lacks_answer = true;
    sample.dropped = mix_.mask_history ? "a conversation whose last answer is flagged as not to be learnt"
                                       : "a conversation whose answers are all flagged as not to be learnt";
    return;
  }
  for (const Conversation& talk : parsed.conversations) {
    ChatTokens tokens = encode_turns(talk);
    sample.texts.push_back({std::move(tokens.ids), std::move(tokens.answer_mask)});
  }
  for (SampleText& text : parsed.tokens) {
    auto largest = *std::max_element(text.ids.begin(), text.ids.end());
    if (static_cast<size_t>(largest) >= tokenizer_.size())
      broken(fmt::format("'token_ids' has token {}, and the tokenizer has {}", largest, tokenizer_.size()));
    if (answers(text) == 0) broken("'loss_mask' has no 1, and there is nothing to learn");
    sample.texts.push_back(std::move(text));
  }
  if (document_start_) return encode_document(parsed.document, sample);
  if (has_tile_text_) return; // limited in place_visual_rows(), when the tokens of its tiles are known
  for (SampleText& text : sample.texts) limit(text, sample);
}

// The bytes of the source are the sample's only frame, or in a text-only source, and for an encoder of images, the
// decoder reads them.
void SampleReader::encode_question(const Question& question, bool text_only, Sample& sample) const {
  if (question.answer.empty()) {
    sample.lacks_answer = true;
    sample.dropped = "none of its answers has any text";
    return;
  }
  const bool is_read_as_bytes = visual_rows_.max_bytes > 0 && !text_only;
  const auto source =
      source_of(questions_.form(), question, is_read_as_bytes ? visual_rows_.max_bytes : max_text_bytes);
  if (!source) {
    sample.dropped = fmt::format("a question that leaves nothing of the encoder's {} bytes", visual_rows_.max_bytes);
    return;
  }
  sample.has_short_answer = true;
  if (is_read_as_bytes) {
    if (source->empty())
      throw Error(ErrorKind::data, "its context and its question are empty, and the encoder reads the bytes of both")
          .advise("repair the sample, or write other text around {context} and {question} in questions.source");
    sample.bytes.assign(source->begin(), source->end());
    sample.frames = 1;
    sample.texts.push_back(questions_.behind_rows(visual_rows_.per_frame, question.answer));
  } else {
    sample.texts.push_back(questions_.behind_text(questions_.form().prompt, *source, question.answer));
  }
  if (mix_.teacher_prompt) sample.teacher_texts.push_back(teacher_text(*source, question.answer));
  limit(sample.texts.back(), sample);
}

void SampleReader::limit(SampleText& text, Sample& sample) const {
  // Placeholders and marks are no tokens: their rows are counted as frames.
  const auto size = std::count_if(text.ids.begin(), text.ids.end(), [](TokenId id) { return id >= 0; });
  if (size <= mix_.max_text_tokens) return;
  // An embedding is of the last token, which stays.
  if (mix_.overlong == plan::Overlong::drop || sample.role != Sample::Role::whole) {
    sample.dropped = fmt::format("a text of {} tokens, more than max_text_tokens = {}", size, mix_.max_text_tokens);
    return;
  }
  int64_t before = answers(text);
  const auto end = end_of_tokens(text.ids, mix_.max_text_tokens);
  if (std::any_of(end, text.ids.cend(), [](TokenId id) { return id < 0; })) {
    sample.dropped = fmt::format("a text of {} tokens, of which max_text_tokens = {} removes places of images", size,
                                 mix_.max_text_tokens);
    return;
  }
  text.ids.erase(end, text.ids.cend());
  text.answer_mask.resize(text.ids.size());
  sample.truncated_tokens += size - mix_.max_text_tokens;
  sample.truncated_answer_tokens += before - answers(text);
  if (answers(text) == 0)
    sample.dropped = fmt::format("a text of {} tokens, of whose answer max_text_tokens = {} leaves nothing", size,
                                 mix_.max_text_tokens);
}

void SampleReader::count_frames(const Shard& shard, const ShardSample& members, FoundFrames found,
                                std::optional<int64_t> told, bool text_only, Sample& sample) const {
  auto tiles = std::exchange(sample.media, std::move(found.media)).tiles; // of an array
  if (visual_rows_.text_only && sample.media.kind != Media::Kind::none)
    throw Error(ErrorKind::data, "it has pictures ('{}'), and the model reads text alone",
                sample.media.members[0].name);
  if (text_only && sample.media.kind != Media::Kind::none)
    throw Error(ErrorKind::data, "it has frames ('{}'), in a text-only source", sample.media.members[0].name)
        .advise("name these shards under `shards` and not under `text`");
  switch (sample.media.kind) {
  case Media::Kind::none:
    if (told.value_or(0) > 0) broken(fmt::format("'frame_count' is {}, and there are no frames", *told));
    if (const Member* unread = text_only ? nullptr : unread_image(members); unread && !told)
      throw Error(ErrorKind::data, "KEY.{} is an image of a kind that is not read: expected {}", unread->name,
                  image_formats)
          .advise(convert_images);
    if (!text_only && !told && !shard.names_media()) {
      const std::string rule = rule_of_keys(members);
      throw Error(ErrorKind::data, "it has no frames: neither KEY.jpg, .png, .000.jpg, .mp4 nor .npy")
          .advise(!rule.empty() ? rule : "text-only samples lie in a source { text = ... }, or say \"frame_count\": 0");
    }
    break;
  case Media::Kind::images:
    count_images(found, told, sample);
    if (found.is_video)
      count_video_pictures(shard, sample);
    else if (frames_.makes_tiles())
      count_tiles(shard, found.still, sample);
    break;
  case Media::Kind::video:
    time_video(shard, sample);
    break;
  case Media::Kind::pixels:
    sample.media.tiles = std::move(tiles);
    count_pixels(shard, told, sample);
    break;
  }
}

void SampleReader::count_images(const FoundFrames& found, std::optional<int64_t> told, Sample& sample) const {
  auto& members = sample.media.members;
  auto count = static_cast<int64_t>(members.size());
  bool repeated = found.still && told == mix_.replicate_image_frames; // it may count what becomes of the image
  if (told && *told != count && !repeated)
    broken(fmt::format("'frame_count' is {}, and there {} {}", *told, count == 1 ? "is" : "are", count));
  if (found.still) {
    sample.frames = sample.copies = mix_.replicate_image_frames;
    return;
  }
  if (found.gap && !told) broken(fmt::format("frame {} is missing", *found.gap));
  if (found.is_video) return; // which of them are read depends on their cells
  std::vector<Member> picked;
  for (int64_t pick : evenly_spaced(count, mix_.max_frames)) picked.push_back(members[static_cast<size_t>(pick)]);
  members = std::move(picked);
  sample.frames = static_cast<int64_t>(members.size());
}

void SampleReader::count_tiles(const Shard& shard, bool still, Sample& sample) const {
  if (still && mix_.replicate_image_frames > 1)
    throw Error(ErrorKind::data,
                "the image would be repeated to {} frames, and the encoder's image processor cuts it into tiles",
                mix_.replicate_image_frames)
        .advise("leave replicate_image_frames out of the mix");
  sample.frames = 0;
  sample.copies = 1;
  const int64_t images = std::ssize(sample.media.members);
  for (const Member& member : sample.media.members) {
    const auto bytes = read_image(shard, member);
    with_member_context(member, [&] { sample.media.tiles.push_back(frames_.layout(bytes, images).grid()); });
    sample.frames += sample.media.tiles.back().frames();
  }
  limit_tiles(images, sample);
}

void SampleReader::limit_tiles(int64_t images, Sample& sample) const {
  sample.exceeds_frames = sample.frames > mix_.max_frames;
  if (sample.exceeds_frames)
    sample.dropped = fmt::format("{} that the image processor cuts into {} frames, more than max_frames = {}",
                                 counted(images, "image"), sample.frames, mix_.max_frames);
}

// Of an array that `preprocess` wrote.
void SampleReader::count_cells(int64_t frames, Sample& sample) const {
  sample.frames = 0;
  sample.copies = 1;
  for (const TileGrid& image : sample.media.tiles) sample.frames += image.frames();
  if (sample.distinct_frames() != frames)
    throw Error(ErrorKind::data, "its 'image_grids' have {} of images, and KEY.npy has {}",
                counted(sample.distinct_frames(), "cell"), counted(frames, "frame"))
        .advise("run preprocess again with this recipe");
  sample.media.picks.resize(static_cast<size_t>(frames));
  std::iota(sample.media.picks.begin(), sample.media.picks.end(), int64_t{0});
  limit_tiles(std::ssize(sample.media.tiles), sample);
}

void SampleReader::count_pixels(const Shard& shard, std::optional<int64_t> told, Sample& sample) const {
  const Member& member = sample.media.members[0];
  const NpyFrames array = with_media_errors([&] {
    std::vector<std::byte> head(std::min<uint64_t>(npy_head_bytes, member.size));
    shard.open(member)->read(0, head);
    return read_npy_head(head, member.size);
  });
  if (array.width != frames_.image_size() || array.height != frames_.image_size())
    throw Error(ErrorKind::data, "KEY.npy has frames of {}x{}, and the model takes {}x{}", array.width, array.height,
                frames_.image_size(), frames_.image_size())
        .advise("run preprocess again with this recipe");
  if (frames_.has_cells()) return count_cells(array.frames, sample);
  if (array.frames == 1) { // a still image; what becomes of it may have been settled beforehand
    sample.media.picks = {0};
    sample.frames = told.value_or(mix_.replicate_image_frames);
    if (sample.frames < 1 || sample.frames > std::max(mix_.replicate_image_frames, mix_.max_frames))
      broken(fmt::format("'frame_count' is {}, and KEY.npy has one frame", sample.frames));
    sample.copies = sample.frames;
    return;
  }
  if (told && *told != array.frames)
    broken(fmt::format("'frame_count' is {}, and KEY.npy has {}", *told, array.frames));
  sample.media.picks = evenly_spaced(array.frames, mix_.max_frames);
  sample.frames = static_cast<int64_t>(sample.media.picks.size());
}

} // namespace fvlm
