// The schema of fvlm.mix { }: where samples come from and what the model sees of them.
#include "recipe/schema/containers.h"
#include "recipe/schema/schema.h"
#include "recipe/schema/values.h"

namespace fvlm::recipe {
namespace {

using namespace plan;

const std::vector<WordInfo>& sample_parts() {
  static const std::vector<WordInfo> parts = {
      {"user", "the user's turn; without it `question`, `prompt`, `instruction` or `query`"},
      {"assistant", "the answer"},
      {"answers", "all answers that an evaluation takes for right; without `assistant` the most frequent is learnt"},
      {"context", "a text that `question` is about, with `answers`; written as `questions` of the mix says. Of "
                  "HotpotQA's paragraphs those sentences are read that `supporting_facts` names, and their neighbours"},
      {"question", "the question about `context`"},
      {"supporting_facts", "which sentences of HotpotQA's `context` support the answer"},
      {"caption", "a text without a question"},
      {"chosen_assistant", "the preferred answer of a pair"},
      {"rejected_assistant", "the other answer of a pair"},
      {"chosen", "the preferred answer of a pair: a text, a turn, or all turns; `prompt` and the like lead to it"},
      {"rejected", "the other answer, in the same form"},
      {"completion", "the answer to `prompt`, in the same form"},
      {"prompt", "what both answers of `chosen` and `rejected`, or the `completion`, are to: a text, or turns"},
      {"label", "whether the answer is a good one, for fvlm.kto: true or false"},
      {"kto_tag", "the same"},
      {"query", "of a retrieval sample, what finds: a text, a list of turns, or { text, image }"},
      {"anchor", "the same"},
      {"query_image", "its picture, or a list of them"},
      {"positive", "what `query` is to find, in the same form; without it, the pictures of the sample"},
      {"positive_image", "its picture, or a list of them"},
      {"negative", "what `query` is not to find, in the same form, or a list; also `negative_1`, `negative_2`, ..."},
      {"negative_image", "its picture, or a list of them"},
      {"negatives", "a list of them"},
      {"texts", "a conversation as a list of { user, assistant }"},
      {"history", "turns before the question: a list of questions with their answers"},
      {"input", "what goes behind a user's `instruction`"},
      {"rejected_response", "the answer of a pair that would stand in place of the last one of `messages`"},
      {"rejected_messages", "the same pair's conversation with the other answer"},
      {"system", "the system turn of a conversation"},
      {"image", "a path, a data: URL or the bytes of an image, where a shard's samples name their files; or a list"},
      {"images", "the same"},
      {"video", "a path or the bytes of a video, likewise"},
      {"videos", "the same, a list of one"},
      {"file_name", "the path of an image or video, as Hugging Face's metadata.jsonl names it"},
      {"file_names", "a list of them"},
      {"objects", "names and boxes that stand for `<ref-object>` and `<bbox>` in the texts"},
      {"messages", "a conversation as a list of { role, content }"},
      {"conversations", "a conversation as a list of { from, value }"},
      {"text", "a document, where the mix has `documents`"},
      {"source", "the name that `prompts` goes by"},
      {"frame_count", "how many frames belong to the sample"},
      {"token_ids", "pretokenized text, with loss_mask"},
      {"loss_mask", "which of token_ids have a loss"},
      {"choices", "the options of a multiple-choice question"},
      {"answer",
       "the right option: its number from 0, its letter or its text; of a `question` without `answers`, its answer"},
  };
  return parts;
}

std::string parts_text() {
  std::vector<std::string> all;
  for (const auto& part : sample_parts()) all.push_back(fmt::format("`{}` ({})", part.name, part.doc));
  return fmt::format("{}", fmt::join(all, ", "));
}

void check_source(Reader& reader, const Source& source) {
  if (source.shards.empty() && source.text.empty())
    reader.report_at("", "no shards: the source is empty",
                     "name files: { \"clips/{0000..0999}.tar\" } or { text = \"chat/*.tar\" }");
  if (!source.shards.empty() && !source.text.empty())
    reader.report_at(".text", "a source has shards with frames or text-only shards, not both",
                     "split it into two sources");
  std::vector<std::string> names;
  for (const auto& part : sample_parts()) names.push_back(part.name);
  for (const auto& [part, key] : source.fields)
    if (std::ranges::find(names, part) == names.end())
      reader.report_at(".fields" + key_part(part), fmt::format("a sample has no part '{}'", part),
                       advise_key(part, names));
}

// How many rows documents give is known only once they are read, so nothing may depend on a number of samples.
void check_documents(Reader& reader, const Mix& mix) {
  if (!mix.documents) return;
  for (size_t i = 0; i < mix.sources.size(); ++i) {
    const std::string source = ".sources" + index_part(i + 1);
    if (!mix.sources[i].text_only())
      reader.report_at(source, "a stream of documents has text-only sources", "write { text = \"chat/*.tar\" }");
    if (mix.sources[i].epochs > 0)
      reader.report_at(source + ".epochs", "documents are cut into rows, whose number is not known beforehand",
                       "leave out `epochs`, and set the stage's `samples` to a number of rows");
    if (mix.sources[i].weight.points.size() > 1)
      reader.report_at(source + ".weight", "the weights of documents cannot change over the stage", "use a number");
  }
}

void check_decoders(Reader& reader, const Mix& mix) {
  if (!mix.decoders) return;
  const std::string source = mix.questions.value_or(QuestionForm()).source;
  for (const auto& [name, texts] : *mix.decoders)
    if (texts.questions && texts.questions->source != source && texts.questions->source != QuestionForm().source)
      reader.report_at(".decoders" + key_part(name) + ".questions.source",
                       "one encoder reads the source for all decoders, and the mix has another",
                       "leave it out here, and write it into `questions` of the mix");
}

void check_mix(Reader& reader, const Mix& mix) {
  check_decoders(reader, mix);
  if (mix.teacher_prompt && mix.preprocessed)
    reader.report_at(".preprocessed", "a preprocessed mix keeps no fields, which `teacher_prompt` reads",
                     "remove `preprocessed`");
  check_documents(reader, mix);
  bool any_text = false, any_frames = false;
  for (const auto& source : mix.sources) (source.text_only() ? any_text : any_frames) = true;
  if (mix.text_ratio && *mix.text_ratio > 0 && !any_text)
    reader.report_at(".text_ratio", "text_ratio is above 0, but there is no text-only source",
                     "add { text = \"chat/*.tar\" }");
  if (mix.text_ratio && *mix.text_ratio < 1 && !any_frames)
    reader.report_at(".text_ratio", "text_ratio is below 1, but every source is text-only");
  // Weights may change over the stage. Without any source at some point, the stage would end there.
  for (int i = 0; i < Curve::sample_count; ++i) {
    double progress = i / double(Curve::sample_count - 1), sum = 0;
    for (double share : mix.shares(progress)) sum += share;
    if (sum > 1 - 1e-9) continue;
    reader.report_at("", fmt::format("every weight is 0 at progress {}", progress),
                     "give at least one source a weight above 0 (with text_ratio: one of each kind)");
    return;
  }
}

Ref<Source> source() {
  return record<Source>("Source", "", "One set of shards in a mix.")
      .usage("{ \"openvid/{0000..0999}.tar\", weight = 0.86 }")
      .field(
          "shards", &Source::shards, list(path(), {.allow_single = true}),
          "Samples with images or videos, as they lie: WebDataset .tar, .jsonl, .json, .tsv or .parquet, folders; .gz "
          "and .zst of them. Patterns with *, ? and {0000..0999}.")
      .items()
      .field("text", &Source::text, list(path(), {.allow_single = true}),
             "In place of shards: the same of text-only samples.")
      .field("weight", &Source::weight, curve(at_least(0)),
             "Share of the samples, relative to the other weights of the mix. May be a function of the stage's "
             "progress.")
      .field("epochs", &Source::epochs, integer(at_least(0)),
             "Passes before the source is exhausted; 0: as many as needed.")
      .field("fields", &Source::fields, map("part of a sample", text()),
             "Maps parts of a sample to keys of the shard's JSON, where those differ. Parts: " + parts_text() + ".")
      .example("{ user = \"question\", assistant = \"answer\" }")
      .field("root", &Source::root, optional(path()),
             "The folder that paths of images and videos in JSON files are relative to. Default: the folder of each "
             "file.")
      .example("\"data/coco\"")
      .field("held_out", &Source::held_out, optional(number(above(0).below(1))),
             "Share of the samples that is held out, evenly spread over them: the data of an evaluation set read those "
             "alone, and the data of a stage all others. Both have to name the same share.")
      .example("0.02")
      .field("name", &Source::name, text_or_empty(),
             "Name of the source for `prompts` and statistics, for samples that have no `source`.")
      .shorthand("shards")
      .check(check_source)
      .done();
}

Ref<QuestionForm> questions() {
  static const auto type =
      record<QuestionForm>("Questions", "", "How samples with a context, a question and answers are written.")
          .field("source", &QuestionForm::source, text(),
                 "What an encoder of bytes reads, or in a text-only source the decoder: {context} and {question} stand "
                 "for those of the sample.")
          .field("prompt", &QuestionForm::prompt, text(),
                 "What stands around the source where the decoder reads it as text, such as a chat with its special "
                 "tokens; {source} stands for it.")
          .field(
              "anchor", &QuestionForm::anchor, text_or_empty(),
              "Text behind the source or its rows, before the answer. Spaces at its end are tokenized with the answer.")
          .field("eos", &QuestionForm::eos, text(), "The special token that ends an answer, and is learnt with it.")
          .field("bos", &QuestionForm::bos, text_or_empty(),
                 "The special token that texts of the decoder begin with; empty: none.")
          .example("\"<|begin_of_text|>\"")
          .field("bos_place", &QuestionForm::bos_place,
                 choice<QuestionForm::Begin>({{"first", QuestionForm::Begin::first, "before the rows"},
                                              {"after_prefix", QuestionForm::Begin::after_prefix, "behind the rows"}}),
                 "Where that token stands in texts with rows.")
          .field("max_answer_tokens", &QuestionForm::max_answer_tokens, integer(at_least(1)),
                 "Longer answers are cut off, in training.")
          .unit("tokens")
          .field("max_source_tokens", &QuestionForm::max_source_tokens, optional(integer(at_least(1))),
                 "The decoder reads this much of a source as text: to compare with as many rows. Default: all of it.")
          .unit("tokens")
          .done();
  return type;
}

Ref<BoxForm> box_form() {
  std::vector<WordInfo> words;
  std::vector<BoxForm> values;
  for (const auto& [form, name, is] : box_forms) {
    words.push_back({name, is});
    values.push_back(form);
  }
  return make_type<Choice<BoxForm>>(std::move(words), std::move(values));
}

Ref<DecoderTexts> decoder_texts() {
  return record<DecoderTexts>("DecoderTexts", "", "What a further decoder reads otherwise than the mix says.")
      .field("system", &DecoderTexts::system, optional(text_or_empty()), "As in the mix.")
      .field("chat_template", &DecoderTexts::chat_template, optional(text()), "As in the mix.")
      .field("teacher_prompt", &DecoderTexts::teacher_prompt, optional(text()), "As in the mix.")
      .field("questions", &DecoderTexts::questions, optional(questions()),
             "As in the mix, all of them but `source`, which one encoder reads for all decoders.")
      .done();
}

} // namespace

Ref<Mix> mix_schema() {
  static const auto type =
      record<Mix>("Mix", "mix", "Samples from weighted sources, and what the model sees of a sample.")
          .usage("fvlm.mix { { \"openvid/{0000..0999}.tar\", weight = 0.86 }, { text = \"smoltalk/*.tar\", weight = "
                 "0.14 } }")
          .field("sources", &Mix::sources, list(source(), {.min = 1}), "The sources, each shuffled on its own.")
          .items()
          .required()
          .field("text_ratio", &Mix::text_ratio, optional(number(between(0, 1))),
                 "Share of text-only samples. Weights then count among the sources with frames and among the text-only "
                 "ones. Default: the weights alone decide.")
          .field("max_frames", &Mix::max_frames, integer(at_least(1)),
                 "Longer clips are subsampled evenly to this many frames.")
          .unit("frames")
          .field("max_text_tokens", &Mix::max_text_tokens, integer(at_least(2)),
                 "Longest text of a sample; for pairs, of each answer.")
          .unit("tokens")
          .aliases({"max_length", "max_seq_len", "cutoff_len", "model_max_length"})
          .field("replicate_image_frames", &Mix::replicate_image_frames, integer(at_least(1)),
                 "A still image is repeated to this many frames.")
          .unit("frames")
          .field("overlong", &Mix::overlong,
                 choice<Overlong>({{"truncate", Overlong::truncate, "truncate it, and count the labels that were lost"},
                                   {"drop", Overlong::drop, "drop the sample, and count it"}}),
                 "What happens to a text longer than max_text_tokens.")
          .field("system", &Mix::system, text_or_empty(), "The system turn of every chat; empty: none.")
          .field("chat_template", &Mix::chat_template, optional(text()),
                 "Name of a chat template of the decoder's folder, usually `default`, which formats every chat. "
                 "Default: ChatML.")
          .field("mask_history", &Mix::mask_history, boolean(),
                 "Learn the last answer of each conversation alone; the earlier ones stand as context. Samples with "
                 "`token_ids` are learnt as their `loss_mask` says.")
          .added_later()
          .field("negatives", &Mix::negatives, optional(integer(between(0, 64))),
                 "How many of a retrieval sample's negatives are read, at most: the first ones. Default: 1.")
          .field(
              "boxes", &Mix::boxes, optional(box_form()),
              "How boxes and points of a sample's `objects` are written; docs/data.md shows each way. Default: as the "
              "models of the decoder's family write them, where that is known.")
          .field("prompts", &Mix::prompts, map("source", text()),
                 "Text of an empty user turn, by the sample's source; `default` for other sources.")
          .example("{ openvid = \"Write a brief caption for this video.\" }")
          .field("teacher_prompt", &Mix::teacher_prompt, optional(text()),
                 "What a teacher with a prompt of its own reads in place of the first user turn, without frames; the "
                 "other turns are the same. `{name}` stands for a field of the sample. For samples with a context, a "
                 "question and answers it takes the place of `questions.prompt`: `{source}` stands for what the "
                 "encoder of bytes reads, and the rest may have special tokens.")
          .example("\"Context: {context}\\nQuestion: {question}\"")
          .field(
              "questions", &Mix::questions, optional(questions()),
              "How samples with a context, a question and answers are written. Default: as turns of a chat, the "
              "user's being `Context: ...` and `Question: ...`; where an encoder reads bytes, with the defaults of its "
              "fields.")
          .field("decoders", &Mix::decoders, optional(map("decoder", decoder_texts())),
                 "What the model's further decoders read otherwise: their own chats, special tokens and prompts of "
                 "teachers. Default: the same as `decoder`.")
          .example("{ decoder2 = { questions = { eos = \"<|im_end|>\" } } }")
          .field("preprocessed", &Mix::preprocessed, optional(path()),
                 "Folder that `preprocess` wrote for this mix; read instead of the sources while its manifest matches "
                 "them.")
          .excluded_from_hash()
          .field("documents", &Mix::documents,
                 optional(choice<Documents>(
                     {{"joined", Documents::joined, "tokens attend to earlier documents of their row"},
                      {"isolated", Documents::isolated, "a document attends to itself alone"}})),
                 "Samples are documents (KEY.txt, or `text` of KEY.json; a conversation is one, too), each from the "
                 "tokenizer's bos token on. Training reads one stream of them, cut into rows of max_text_tokens: a row "
                 "counts as a sample. An evaluation cuts each document by itself. Default: samples are conversations.")
          .check(check_mix)
          .done();
  return type;
}

} // namespace fvlm::recipe
