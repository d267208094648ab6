// What a stream of /v1/responses says where it breaks, which no request can bring about.
#include "serve/response_json.h"

#include <gtest/gtest.h>

namespace fvlm::serve {
namespace {

using Json = nlohmann::json;

// The documents of events, whose names are those of their types.
std::vector<Json> documents_in(const std::string& events) {
  std::vector<Json> documents;
  for (size_t begin = 0, end = 0; begin < events.size(); begin = end + 2) {
    end = events.find("\n\n", begin);
    const std::string event = events.substr(begin, end - begin);
    const size_t data = event.find("\ndata: ");
    documents.push_back(Json::parse(event.substr(data + 7)));
    EXPECT_EQ(event.substr(0, data), "event: " + documents.back()["type"].get<std::string>());
  }
  return documents;
}

ResponseJson response() {
  ChatRequest request;
  request.model = "tiny";
  request.response_fields = std::make_shared<const Json>(Json{{"store", false}});
  return ResponseJson(request, "1", 7);
}

TEST(ResponseJson, SaysWhyAStreamBreaks) {
  ResponseJson json = response();
  const std::string begun = json.piece(0, "It", true, {});
  const Error error = Error(ErrorKind::internal, "the model failed").advise("see the log");
  const std::vector<Json> events = documents_in(begun + json.failure(error));
  ASSERT_EQ(events.size(), 7U);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
  EXPECT_EQ(events[4]["delta"], "It");
  EXPECT_EQ(events[5]["type"], "error");
  EXPECT_EQ(events[5]["message"], "the model failed: see the log");
  EXPECT_FALSE(events[5].contains("error")) << "openai's package then raises before the response.failed";
  EXPECT_EQ(events[6]["type"], "response.failed");
  EXPECT_EQ(events[6]["response"]["status"], "failed");
  EXPECT_EQ(events[6]["response"]["error"]["message"], "the model failed: see the log");
  EXPECT_EQ(events[6]["response"]["id"], events[0]["response"]["id"]);
}

TEST(ResponseJson, HasNoMessageForTheTokensOfCalls) {
  ResponseJson json = response();
  std::string events = json.call(0, {"f", "{}"}, true);
  events += json.piece(0, "", false, {{"{", -1.5, 0, {}}});
  events += json.last_piece(0, {.finish = "tool_calls"});
  for (const Json& each : documents_in(events))
    EXPECT_EQ(each.value("item", Json{{"type", "function_call"}})["type"], "function_call") << each;
  const Json last = documents_in(json.end({})).back();
  EXPECT_EQ(last["response"]["output"].size(), 1U);

  json = response();
  (void)json.call(0, {"f", "{}"}, true);
  (void)json.piece(0, "And", false, {});
  events = json.piece(0, "", false, {{"!", -1.5, 0, {}}});
  EXPECT_EQ(documents_in(events).back()["logprobs"].size(), 1U) << "of what is said besides";
}

TEST(ResponseJson, ReplacesWhatIsNoCharacter) {
  ResponseJson json = response();
  std::vector<Json> events = documents_in(json.piece(0, "a\xc3", true, {{"a\xc3", -1.5, 0, {}}}));
  EXPECT_EQ(events.back()["delta"], "a\uFFFD");
  EXPECT_EQ(events.back()["logprobs"][0]["bytes"], Json({0x61, 0xc3}));
  events = documents_in(json.last_piece(0, {.finish = "length"}));
  EXPECT_EQ(events[0]["text"], "a\uFFFD");
  EXPECT_EQ(events[2]["item"]["status"], "incomplete");
}

} // namespace
} // namespace fvlm::serve
