// What stands around the frames of a video.
#include "base/error.h"
#include "data/chat.h"
#include "data/video_text.h"
#include "small_tokenizer.h"

#include <array>
#include <gmock/gmock.h>
#include <utility>

using namespace fvlm;

TEST(VideoText, SaysHowManyFramesThereAreAndWhenEachIsShown) {
  const std::array times{0.0, 1.4, 75.99};
  EXPECT_EQ(video_text(times, 3671.9),
            "You are provided the following series of three frames from a 1:01:11 [H:MM:SS] video.\n"
            "\nFrame from 00:00:<image>\nFrame from 00:01:<image>\nFrame from 01:15:<image>\n\n");
  EXPECT_THAT(video_text(times, 90000), testing::HasSubstr("from a 1 day, 1:00:00 [H:MM:SS] video"));
}

TEST(VideoText, SpellsNumbers) {
  const std::pair<int64_t, const char*> numbers[] = {{1, "one"},
                                                     {13, "thirteen"},
                                                     {20, "twenty"},
                                                     {64, "sixty-four"},
                                                     {100, "one hundred"},
                                                     {512, "five hundred and twelve"},
                                                     {1000, "one thousand"},
                                                     {1009, "one thousand and nine"},
                                                     {65536, "sixty-five thousand, five hundred and thirty-six"}};
  for (const auto& [number, words] : numbers) EXPECT_EQ(in_words(number), words);
}

TEST(VideoText, StandsForTheMarkOfAVideo) {
  const Tokenizer tokenizer = Tokenizer::from_json(fvlm::test::small_tokenizer().dump(), "tokenizer.json");
  const ChatTemplate chat(tokenizer, {.in_place = true});
  std::vector<Turn> turns{{"user", "Is it <video> so?"}};
  write_video(turns, "\nA <image>\nB <image>");
  const auto ids = chat.encode(turns, "").ids;
  turns = {{"user", "Is it \nA <image>\nB <image> so?"}};
  EXPECT_EQ(ids, chat.encode(turns, "").ids);
  turns = {{"user", "<image> <video>?"}};
  EXPECT_THROW(write_video(turns, "A"), Error);
  EXPECT_NO_THROW(write_video(turns, "A", true));
}
