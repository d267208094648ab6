#include "base/config_reader.h"
#include "base/error.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fvlm {

TEST(ConfigReader, WholeNumbersMayBeWrittenWithAPoint) {
  const auto whole = [](const char* text) {
    const auto object = nlohmann::json::parse(text);
    ConfigReader reader(object, "config.json");
    const int64_t number = reader.whole("size", std::nullopt, 1, 1LL << 60);
    reader.finish("write a whole number");
    return number;
  };
  EXPECT_EQ(whole(R"({"size": 64.0})"), 64);
  EXPECT_EQ(whole(R"({"size": 1e3})"), 1000);
  for (const char* text : {R"({"size": 64.5})", R"({"size": 0.0})", R"({"size": 1e17})", R"({"size": "64"})"})
    EXPECT_THROW(whole(text), Error) << text;
}

} // namespace fvlm
