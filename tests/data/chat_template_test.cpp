// The chat template of a tokenizer's folder: where it is read from, which tokens it makes, and which of them are
// answers.
#include "base/error.h"
#include "base/file.h"
#include "base/scratch_folder.h"
#include "data/answer_end.h"
#include "data/chat.h"
#include "data/own_template.h"
#include "data/visual_marks.h"
#include "small_tokenizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ctime>
#include <fstream>
#include <gmock/gmock.h>

using namespace fvlm;
using test::small_tokenizer;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

const std::string chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
                           "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

// A folder with the small tokenizer.
class ChatFolder {
 public:
  explicit ChatFolder(const Json& config = Json::object()) {
    write(path() / "tokenizer.json", small_tokenizer().dump());
    write(path() / "tokenizer_config.json", config.dump());
  }
  fs::path path() const { return folder_.path(); }
  Tokenizer tokenizer() const { return Tokenizer::from_file(path() / "tokenizer.json"); }

 private:
  ScratchFolder folder_;
};

ChatTokens encode(const ChatFolder& folder, std::vector<Turn> turns, const std::string& system = "",
                  const std::string& name = "default") {
  const Tokenizer tokenizer = folder.tokenizer();
  return ChatTemplate(tokenizer, {}, name).encode(turns, system);
}

std::string answers_in(const ChatFolder& folder, const ChatTokens& tokens) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < tokens.ids.size(); ++i)
    if (tokens.answer_mask[i]) ids.push_back(tokens.ids[i]);
  return folder.tokenizer().decode(ids);
}

std::string error_of(const ChatFolder& folder, std::vector<Turn> turns, const std::string& name = "default") {
  try {
    encode(folder, std::move(turns), "", name);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.text();
  }
  return "accepted";
}

} // namespace

TEST(OwnTemplate, EqualsChatmlWhereItSaysTheSame) {
  const ChatFolder folder(Json{{"chat_template", chatml}});
  const std::vector<Turn> turns = {
      {"user", "hi <|im_end|> <|im_start|>"}, {"assistant", "abc"}, {"user", "x"}, {"assistant", "bc"}};
  const Tokenizer tokenizer = folder.tokenizer();
  const ChatTemplate own(tokenizer, {}, "default"), built_in(tokenizer);
  const ChatTokens a = own.encode(turns, "be kind"), b = built_in.encode(turns, "be kind");
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.answer_mask, b.answer_mask);
  EXPECT_EQ(std::count(a.ids.begin(), a.ids.end(), 260), 5) << "what the user spells is no token";
  EXPECT_EQ(own.prompt(std::span(turns).first(3), "be kind"), built_in.prompt(std::span(turns).first(3), "be kind"));
}

TEST(OwnTemplate, IsTheModelsOwnWhereItWritesOtherwiseThanChatml) {
  const ChatFolder folder;
  const auto own = [&](const std::string& text) {
    write(folder.path() / "chat_template.jinja", text);
    return own_chat_template(folder.tokenizer());
  };
  EXPECT_EQ(own_chat_template(folder.tokenizer()), std::nullopt) << "there is none";
  EXPECT_EQ(own(chatml), "default") << "it writes no system turn of ours";
  EXPECT_EQ(own_chat_template(folder.tokenizer(), "Be brief."), std::nullopt) << "it writes that as ChatML does";
  const std::string usual_system =
      "{% if messages[0].role != 'system' %}<|im_start|>system\nbe kind<|im_end|>\n{% endif %}";
  EXPECT_EQ(own(usual_system + chatml), std::nullopt)
      << "SmolLM2's writes a system turn of its own where there is none";
  const std::string other = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
                            "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
  EXPECT_EQ(own(other), "default");
  EXPECT_EQ(own("{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + other), "default");
  const std::string with_images =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for part in m.content %}{% if part.type == 'image' %}<IMG_CONTEXT>\n{% else %}{{ part.text }}{% endif %}"
      "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  EXPECT_EQ(own(with_images), "default") << "InternVL's writes what ChatML does, but no system turn of ours";
  EXPECT_EQ(own("{% unheard %}"), std::nullopt);
  EXPECT_EQ(own("nothing of the turns"), std::nullopt);
}

// As LLaVA's, whose prompts end with "ASSISTANT:" and whose turns begin with "ASSISTANT: ".
TEST(OwnTemplate, AnswersBeginWhereTheirPromptEnds) {
  const ChatFolder folder(
      Json{{"chat_template", "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'A: ' }}{% generation %}"
                             "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ 'U: ' + m.content + ' ' }}"
                             "{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"}});
  const std::vector<Turn> turns = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", " b"}};
  const ChatTokens tokens = encode(folder, turns);
  EXPECT_EQ(folder.tokenizer().decode(tokens.ids), "U: a A: b<|im_end|>U: c A:  b<|im_end|>");
  EXPECT_EQ(answers_in(folder, tokens), " b<|im_end|>  b<|im_end|>");
  const Tokenizer tokenizer = folder.tokenizer();
  const auto prompt = ChatTemplate(tokenizer, {}, "default").prompt(std::span(turns).first(3), "");
  ASSERT_LT(prompt.size(), tokens.ids.size());
  EXPECT_TRUE(std::equal(prompt.begin(), prompt.end(), tokens.ids.begin()));
  EXPECT_EQ(tokens.answer_mask[prompt.size() - 1], 0);
  EXPECT_EQ(tokens.answer_mask[prompt.size()], 1);
}

// Llama 2's tokenizers put a space in front of each text, and an answer is encoded apart from what stands before it.
TEST(OwnTemplate, AnswersOfSentencePieceHaveOneSpace) {
  const ChatFolder folder(
      Json{{"chat_template", "{% for m in messages %}{% if m.role == 'assistant' %}{{ 'A: ' + m.content + '</s>' }}"
                             "{% else %}{{ 'U: ' + m.content + ' ' }}{% endif %}{% endfor %}"
                             "{% if add_generation_prompt %}A:{% endif %}"}});
  Json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocabulary[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  for (const char* text : {"\u2581", "a", "b", "U", "A", ":", "\u2581a", "\u2581b", "\u2581A"})
    vocabulary[text] = vocabulary.size();
  Json added = Json::array();
  for (const int id : {0, 1, 2})
    added.push_back({{"id", id},
                     {"content", id == 0   ? "<unk>"
                                 : id == 1 ? "<s>"
                                           : "</s>"},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const Json back = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  const Json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  const Json file = {
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, replace}}}},
      {"pre_tokenizer", nullptr},
      {"decoder", {{"type", "Sequence"}, {"decoders", {back, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocabulary},
        {"merges", {"\u2581 a", "\u2581 b", "\u2581 A"}},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true}}}};
  write(folder.path() / "tokenizer.json", file.dump());
  const Tokenizer tokenizer = folder.tokenizer();
  for (const char* answer : {"b", " b", "\nb"}) {
    const ChatTokens tokens = encode(folder, {{"user", "a"}, {"assistant", answer}});
    const std::string whole = fmt::format("U: a A: {}</s>", answer);
    EXPECT_EQ(tokens.ids, tokenizer.encode(whole)) << "as transformers encodes it in one piece";
    EXPECT_EQ(tokens.answer_mask[tokenizer.encode("U: a A:").size()], 1) << answer;
  }
}

TEST(OwnTemplate, OfAnswersWithoutAnEndIsFound) {
  const ChatFolder folder;
  const auto problem = [&](const std::string& text, std::vector<int64_t> ends) {
    write(folder.path() / "chat_template.jinja", text);
    return missing_answer_end(folder.tokenizer(), "default", ends).value_or("");
  };
  const TokenId end = *folder.tokenizer().special_id("<|im_end|>"),
                start = *folder.tokenizer().special_id("<|im_start|>");
  EXPECT_EQ(problem(chatml, {start, end}), "");
  EXPECT_THAT(problem(chatml, {start}), testing::HasSubstr("generation stops ('<|im_start|>')"))
      << "a token at which generation goes on is no end";
  // As that of LLaVA 1.5, whose answers end with a space.
  const std::string open =
                        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content + ' ' }}",
                    close =
                        "{% endgeneration %}{% else %}{{ 'U: ' + m.content + ' <|im_end|> ' }}{% endif %}{% endfor %}";
  EXPECT_THAT(problem(open + close, {end}), testing::HasSubstr("write {{ eos_token }} behind the assistant's content"));
  EXPECT_EQ(problem(open + "<|im_end|>" + close, {end}), "");
  EXPECT_EQ(problem("{{ raise_exception('no') }}", {end}), "") << "nothing is known of it";
}

TEST(OwnTemplate, ComesFromAFileOrFromTheConfiguration) {
  auto says = [](const char* word) { return std::string(word) + "{{ messages[0].content }}"; };
  const Json several = {{{"name", "default"}, {"template", says("A")}},
                        {{"name", "tool_use"}, {"template", says("B")}}};
  const ChatFolder folder(Json{{"chat_template", several}, {"bos_token", {{"content", "<|im_start|>"}}}});
  auto text = [&](const std::string& name = "default") {
    return folder.tokenizer().decode(encode(folder, {{"user", "!"}}, "", name).ids);
  };
  EXPECT_EQ(text(), "A!");
  EXPECT_EQ(text("tool_use"), "B!");
  write(folder.path() / "chat_template.json", Json{{"chat_template", says("C")}}.dump());
  EXPECT_EQ(text(), "C!");
  write(folder.path() / "chat_template.jinja", "{{ bos_token }}" + says("D"));
  EXPECT_EQ(text(), "<|im_start|>D!");
  write(folder.path() / "additional_chat_templates" / "rag.jinja", says("E"));
  EXPECT_EQ(text("rag"), "E!");
  EXPECT_THAT(error_of(folder, {{"user", "x"}}, "missing"),
              testing::HasSubstr("it has no chat template 'missing'\n  there is default, rag or tool_use"));
  EXPECT_THAT(error_of(ChatFolder(), {{"user", "x"}}), testing::HasSubstr("leave chat_template out of the recipe"));
}

TEST(OwnTemplate, OfToolsWritesConversationsWithTools) {
  const auto named = [](const char* name, const std::string& says) {
    return Json{{"name", name}, {"template", chatml + says}};
  };
  const Json all = Json::array({named("default", "D"), named("tool_use", "T{{ tools | length }}"), named("rag", "R")});
  const ChatFolder folder(Json{{"chat_template", all}});
  const Tokenizer tokenizer = folder.tokenizer();
  const auto tools = in_usual_order(Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}}));
  const std::vector<Turn> turns = {{"user", "a"}};
  const auto prompt = [&](const char* name, const nlohmann::ordered_json* offered) {
    return tokenizer.decode(ChatTemplate(tokenizer, {}, name).prompt(turns, "", {.tools = offered}));
  };
  EXPECT_THAT(prompt("default", nullptr), testing::EndsWith("D"));
  EXPECT_THAT(prompt("default", &tools), testing::EndsWith("T1"));
  EXPECT_THAT(prompt("rag", &tools), testing::EndsWith("R")) << "a template that was chosen";
}

TEST(OwnTemplate, ToolsAndCallsKeepTheOrderOfTheirKeys) {
  using Ordered = nlohmann::ordered_json;
  const ChatFolder folder(Json{{"chat_template", "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages "
                                                 "%}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
                                                 "{% endfor %}"}});
  const Tokenizer tokenizer = folder.tokenizer();
  const std::string tool =
                        R"({"type": "function", "function": {"parameters": {"required": ["z"], "properties": )"
                        R"({"z": {"description": "d", "type": "string"}, "a": {}}, "type": "object"}, "name": "f"}})",
                    calls = R"([{"function": {"name": "f", "arguments": {"z": 1, "name": 2, "a": 3}}}])";
  const Ordered tools = Ordered::array({Ordered::parse(tool)});
  const std::vector<Turn> turns = {
      {"assistant", "", 0, {}, std::make_shared<const Ordered>(Ordered{{"tool_calls", Ordered::parse(calls)}})},
      {"user", "!"}};
  const auto prompt = ChatTemplate(tokenizer, {}, "default").prompt(turns, "", {.tools = &tools});
  EXPECT_EQ(tokenizer.decode(prompt), tool + calls + "!");
  EXPECT_EQ(in_usual_order(Json::parse(tool)).dump(),
            R"({"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{},"z":)"
            R"({"type":"string","description":"d"}},"required":["z"]}}})");
}

TEST(OwnTemplate, AnswersAreGenerationBlocksWhereThereAreSome) {
  const ChatFolder folder(
      Json{{"chat_template", "{% for m in messages %}{% if m.role == 'assistant' %}> {% generation %}"
                             "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
                             "{% endif %}{{ '\n' }}{% endfor %}"}});
  const auto tokens =
      encode(folder, {{"user", "a <|im_end|>"}, {"assistant", "b <|im_end|> c"}, {"user", "d"}, {"assistant", "e"}});
  EXPECT_EQ(folder.tokenizer().decode(tokens.ids), "a <|im_end|>\n> b <|im_end|> c<|im_end|>\nd\n> e<|im_end|>\n");
  EXPECT_EQ(answers_in(folder, tokens), "b <|im_end|> c<|im_end|>e<|im_end|>");
  EXPECT_EQ(std::count(tokens.ids.begin(), tokens.ids.end(), 260), 2);
}

TEST(OwnTemplate, RefusesToGuessWhereAnAnswerIs) {
  const ChatFolder folder(
      Json{{"chat_template", "{% for m in messages %}[{{ loop.revindex }}]{{ m.content }}{% endfor %}"}});
  EXPECT_THAT(
      error_of(folder, {{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}}),
      testing::HasSubstr("tokenizer_config.json: chat_template: the chat template does not show where answer 1"));
}

// As Qwen3's, which drops the thoughts of all answers but the last one.
TEST(OwnTemplate, PromptsNeedNotShowWhereAnswersAre) {
  const ChatFolder folder(Json{{"chat_template", "{% for m in messages %}{{ 'a:' if m.role == 'assistant' else 'u:' "
                                                 "}}{% if m.role == 'assistant' and loop.last %}"
                                                 "{{ '(hm)' }}{% endif %}{{ m.content + '<|im_end|>' }}{% endfor %}"
                                                 "{% if add_generation_prompt %}a:{% endif %}"}});
  const std::vector<Turn> turns = {{"user", "b"}, {"assistant", "c"}, {"user", "d"}};
  const Tokenizer tokenizer = folder.tokenizer();
  const auto prompt = ChatTemplate(tokenizer, {}, "default").prompt(turns, "");
  EXPECT_EQ(tokenizer.decode(prompt), "u:b<|im_end|>a:c<|im_end|>u:d<|im_end|>a:");
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), 260), 3);
  EXPECT_THAT(error_of(folder, turns), testing::HasSubstr("does not show where answer 1"));
  std::vector<Turn> last = {{"user", "b"}, {"assistant", "c"}, {"user", "d"}, {"assistant", "b"}};
  last[1].is_learnt = false;
  EXPECT_EQ(answers_in(folder, encode(folder, last)), "(hm)b<|im_end|>") << "where answer 1 is need not be known";
}

TEST(OwnTemplate, AnswersThatAreNotLearntAreContext) {
  std::vector<Turn> turns = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}};
  turns[1].is_learnt = false;
  const std::string block = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}";
  const auto in_blocks = [](const std::string& answer) {
    return Json{{"chat_template", "{% for m in messages %}{% if m.role == 'assistant' %}" + answer +
                                      "{% else %}{{ m.content }}{% endif %}{% endfor %}"}};
  };
  for (const Json& config : {Json{{"chat_template", chatml}}, in_blocks(block)}) {
    const ChatFolder folder(config);
    const ChatTokens tokens = encode(folder, turns);
    EXPECT_THAT(answers_in(folder, tokens), testing::StartsWith("d<|im_end|>"));
    std::vector<Turn> learnt = turns;
    learnt[1].is_learnt = true;
    EXPECT_EQ(tokens.ids, encode(folder, learnt).ids);
  }
  const ChatFolder two(in_blocks("{% generation %}>{% endgeneration %}" + block));
  EXPECT_EQ(answers_in(two, encode(two, turns)), ">d<|im_end|>");
  const ChatFolder last(in_blocks("{% if loop.last %}" + block + "{% else %}{{ m.content }}{% endif %}"));
  EXPECT_THAT(error_of(last, turns), testing::HasSubstr("does not show where answer 1 of the conversation is"));
}

TEST(OwnTemplate, VariablesOfAPromptSpellNoTokens) {
  const ChatFolder folder(
      Json{{"chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}{% if think is defined and not think %}"
                             "{{ 'short ' + mood.of }}{% endif %}"}});
  const Tokenizer tokenizer = folder.tokenizer();
  const ChatTemplate chat(tokenizer, {}, "default");
  const auto said = [&](const Json& variables) {
    const auto prompt = chat.prompt(std::vector<Turn>{{"user", "a"}}, "", {.variables = &variables});
    return std::pair(tokenizer.decode(prompt), std::count(prompt.begin(), prompt.end(), 260));
  };
  EXPECT_EQ(said({{"think", false}, {"mood", {{"of", "b<|im_end|>"}}}}),
            std::pair(std::string("ashort b<|im_end|>"), 0L));
  EXPECT_EQ(said({{"think", true}}).first, "a");
  EXPECT_EQ(said({{"unread", 1}}).first, "a");
}

TEST(OwnTemplate, SystemTurnsMayStandAnywhere) {
  const std::vector<Turn> turns = {{"system", "b"}, {"user", "a"}, {"system", "c"}, {"user", "a"}};
  const ChatFolder folder(Json{{"chat_template", chatml}});
  const Tokenizer tokenizer = folder.tokenizer();
  const auto prompt = ChatTemplate(tokenizer).prompt(turns, "x");
  EXPECT_EQ(ChatTemplate(tokenizer, {}, "default").prompt(turns, "x"), prompt);
  EXPECT_THAT(tokenizer.decode(prompt),
              testing::HasSubstr("user\na<|im_end|>\n<|im_start|>system\nc<|im_end|>\n<|im_start|>user"));
}

TEST(OwnTemplate, ErrorsNameTheFileAndTheLine) {
  EXPECT_THAT(error_of(ChatFolder(Json{{"chat_template", "\n{% for %}"}}), {{"user", "a"}}),
              testing::AllOf(testing::HasSubstr("tokenizer_config.json: chat_template:2: expected a name"),
                             testing::HasSubstr("or leave out chat_template for ChatML")));
  EXPECT_THAT(error_of(ChatFolder(Json{{"chat_template", "{{ messages[0].content | zork }}"}}), {{"user", "a"}}),
              testing::AllOf(testing::HasSubstr("chat_template:1: the filter 'zork' is not supported"),
                             testing::HasSubstr("correct the template, or leave out chat_template for ChatML")));
  EXPECT_THAT(error_of(ChatFolder(Json{{"chat_template", "hello"}}), {{"user", "a"}}),
              testing::HasSubstr("does not show what a user says"));
  EXPECT_THAT(error_of(ChatFolder(Json{{"chat_template", "{{ messages[0].content }}\n{% if messages | length > 1 %}"
                                                         "{{ raise_exception('one turn') }}{% endif %}"}}),
                       {{"user", "a"}, {"assistant", "b"}}),
              testing::HasSubstr("chat_template:2: the template refuses the conversation: one turn"));
}

TEST(OwnTemplate, ImagesBecomeWhatTheTemplateWritesForThem) {
  for (const char* name : {"smolvlm", "llava", "qwen2vl", "qwen3_5", "idefics3", "gemma3", "gemma4", "ministral3"}) {
    const ChatFolder folder(
        Json{{"chat_template", read_file(fs::path(FVLM_CHAT_TEMPLATES) / (std::string(name) + ".jinja"))}});
    const auto tokens = encode(folder, {{"user", "what?", 2}, {"assistant", "abc"}});
    const std::string text = folder.tokenizer().decode(tokens.ids);
    const std::string token = std::string(name).starts_with("qwen") ? "<|image_pad|>"
                              : std::string(name) == "gemma3"       ? "<start_of_image>"
                              : std::string(name) == "gemma4"       ? "<|image|>"
                              : std::string(name) == "ministral3"   ? "[IMG]"
                                                                    : "<image>";
    int images = 0;
    for (size_t at = 0; (at = text.find(token, at)) != std::string::npos; ++at) ++images;
    EXPECT_EQ(images, 2) << name << ": " << text;
    EXPECT_THAT(answers_in(folder, tokens), testing::HasSubstr("abc")) << name;
    EXPECT_THAT(answers_in(folder, tokens), testing::Not(testing::HasSubstr("what"))) << name;
  }
  EXPECT_THAT(error_of(ChatFolder(Json{{"chat_template", chatml}}), {{"user", "a", 1}}),
              testing::HasSubstr("the chat template has no place for images"));
}

// Gemma 3's processor writes around an image what its template does not.
TEST(OwnTemplate, ImagesOfGemma3StandBetweenTheirTokens) {
  const ChatFolder folder(
      Json{{"chat_template", read_file(fs::path(FVLM_CHAT_TEMPLATES) / "gemma3.jinja")}, {"bos_token", "<bos>"}});
  const std::vector<Turn> turns{{"user", "<image>\nIs <start_of_image> like <image>?"}, {"assistant", "abc"}};
  const auto render = [&](const std::string& end) {
    Json file = small_tokenizer();
    for (const std::string& token : {std::string("<start_of_image>"), end})
      file["added_tokens"].push_back(
          {{"id", 259 + file["added_tokens"].size()}, {"content", token}, {"special", true}});
    write(folder.path() / "tokenizer.json", file.dump());
    const Tokenizer tokenizer = folder.tokenizer();
    return OwnTemplate(tokenizer, "default", true).render(turns, false);
  };
  const ChatText chat = render("<end_of_image>");
  const std::string before = "<bos><start_of_turn>user\n\n\n<start_of_image>", behind = "<end_of_image>\n\n",
                    between = "Is <start_of_image> like\n\n<start_of_image>";
  EXPECT_EQ(chat.text, before + behind + between + behind + "?<end_of_turn>\n<start_of_turn>model\nabc<end_of_turn>\n");
  const size_t first = before.size(), second = first + behind.size() + between.size();
  EXPECT_EQ(chat.marks, (std::vector<std::pair<size_t, size_t>>{{first, first}, {second, second}}));
  ASSERT_EQ(chat.answers.size(), 1u);
  EXPECT_EQ(chat.text.substr(chat.answers[0].begin), "abc<end_of_turn>\n");
  EXPECT_EQ(chat.literal, std::vector<size_t>{first + behind.size() + 3}) << "what the user spells";
  EXPECT_THAT(render("<other>").text, testing::HasSubstr("user\n<start_of_image>Is")) << "without the token for it";
}

// Every public form finds the answer of a conversation of one answer.
TEST(OwnTemplate, PublicFormsShowWhereTheAnswerIs) {
  int forms = 0;
  for (const auto& entry : fs::directory_iterator(FVLM_CHAT_TEMPLATES)) {
    const std::string name = entry.path().stem().string();
    if (name == "functionary" || name == "hermes" || name == "command_r_tools") continue; // which need tools
    const ChatFolder folder(
        Json{{"chat_template", read_file(entry.path())}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
    // Prompts of these end with what the answer does not begin with: "<think>", a second line break.
    if (name == "deepseek_r1" || name == "olmo") continue;
    const auto tokens = encode(folder, {{"user", "what?"}, {"assistant", "abc"}});
    EXPECT_THAT(answers_in(folder, tokens), testing::HasSubstr("abc")) << name;
    EXPECT_THAT(answers_in(folder, tokens), testing::Not(testing::HasSubstr("what"))) << name;
    ++forms;
  }
  EXPECT_GE(forms, 20);
}

// Rendered up to each of its answers, it would take minutes.
TEST(OwnTemplate, LongPromptsTakeNoTimeOfTheirSquare) {
  for (const bool marks_answers : {false, true}) {
    std::string text = chatml;
    if (marks_answers)
      text.replace(text.find("m.content"), 9, "'' }}{% generation %}{{ m.content }}{% endgeneration %}{{ ''");
    const ChatFolder folder(Json{{"chat_template", text}});
    const Tokenizer tokenizer = folder.tokenizer();
    const ChatTemplate chat(tokenizer, {}, "default");
    std::vector<Turn> turns;
    for (int i = 0; i < 1000; ++i)
      for (const char* role : {"user", "assistant"}) turns.push_back({role, std::string(100, 'a')});
    const std::clock_t begin = std::clock();
    const auto ids = chat.prompt(turns, "");
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 20);
    EXPECT_EQ(ids, ChatTemplate(tokenizer).prompt(turns, ""));
  }
}

TEST(VisualMarks, AreWordsUntilTheyBecomeTokens) {
  const std::string text = "<image><video> <<image> <imag <\uFDD1>";
  EXPECT_FALSE(has_visual_mark(marks_as_words(text)));
  EXPECT_EQ(words_as_spelled(marks_as_words(text)), text);
  EXPECT_EQ(marks_as_words("no mark <"), "no mark <");
  const ChatFolder folder;
  const Tokenizer tokenizer = folder.tokenizer();
  const ChatTemplate chat(tokenizer, {4, true}); // ChatML
  const auto ids = chat.prompt(std::vector<Turn>{{"user", marks_as_words(text)}}, "");
  EXPECT_EQ(tokenizer.decode(ids), "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(std::ranges::count_if(ids, [](TokenId id) { return id < 0; }), 0);
}

TEST(OwnTemplate, MarksStandWhereTheTemplateWritesImages) {
  const auto words = [](const Json& config, const std::string& user) {
    const ChatFolder folder(config);
    const Tokenizer tokenizer = folder.tokenizer();
    const ChatTokens tokens = ChatTemplate(tokenizer, {4, true}, "default")
                                  .encode(std::vector<Turn>{{"user", user}, {"assistant", "<image> it is"}}, "");
    std::vector<TokenId> ids = tokens.ids;
    std::vector<uint8_t> mask = tokens.answer_mask;
    expand_marks(ids, mask, {2, 4, false});
    return decode_with_placeholders(tokenizer, ids);
  };
  const auto form = [](const char* name) {
    return Json{{"chat_template", read_file(fs::path(FVLM_CHAT_TEMPLATES) / (std::string(name) + ".jinja"))}};
  };
  const std::string user = "<image>\nWhat of <image>?";
  EXPECT_THAT(words(form("smolvlm"), user),
              testing::HasSubstr("User:[4 visual rows]What of [4 visual rows]?<end_of_utterance>\n"
                                 "Assistant: <image> it is<end_of_utterance>"));
  EXPECT_THAT(words(form("llava"), user), testing::HasSubstr("USER: [4 visual rows]\n[4 visual rows]\nWhat of  ? "));
  EXPECT_EQ(words(Json{{"chat_template", chatml}}, user),
            "<|im_start|>user\n[4 visual rows]\nWhat of [4 visual rows]?<|im_end|>\n"
            "<|im_start|>assistant\n<image> it is<|im_end|>\n")
      << "of a template that takes texts alone";
  EXPECT_THAT(words(form("qwen2vl"), user), testing::HasSubstr("<|vision_start|>[4 visual rows]<|vision_end|>"));
  const std::string spelled = marks_as_words("What is <image>, <video> and <<image>>?");
  for (const Json& config : {form("smolvlm"), form("llava"), form("qwen2vl"), Json{{"chat_template", chatml}}})
    for (const char* shown : {"<image>\nand <image>: ", ""})
      EXPECT_THAT(words(config, shown + spelled), testing::HasSubstr("What is <image>, <video> and <<image>>?"));
  const std::string of_videos =
      R"({% for message in messages %}{% for part in message['content'] %}{% if part['type'] ==
 'image' %}<|image|>{% elif part['type'] == 'video' %}<|begin_of_video|><|video|><|end_of_video|>{% else %}{{
 part['text'] }}{% endif %}{% endfor %}{% endfor %})";
  EXPECT_THAT(words(Json{{"chat_template", of_videos}}, "What of <video>? <|video|>"),
              testing::HasSubstr("What of <|begin_of_video|>[8 visual rows]<|end_of_video|>? <|video|>"));
  EXPECT_THAT(words(form("ministral3"), user),
              testing::HasSubstr("[INST][4 visual rows]What of [4 visual rows]?[/INST]"));
}
