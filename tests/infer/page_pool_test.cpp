// Pages: who has them, what is kept, and what is forgotten first.
#include "base/error.h"
#include "infer/page_pool.h"

namespace fvlm::infer {
namespace {

TEST(PagePool, ForgetsTheCachedPageThatWasReleasedFirst) {
  PagePool pool(3);
  std::vector<int32_t> pages;
  for (const char* key : {"a", "b", "c"}) {
    pages.push_back(*pool.allocate());
    pool.publish(pages.back(), key);
  }
  EXPECT_EQ(pool.allocate(), std::nullopt);
  for (const int32_t page : {pages[1], pages[0], pages[2]}) pool.release(page);
  EXPECT_EQ(pool.cached(), 3);
  pool.share(pages[1]); // used again, and so no longer the first
  pool.release(pages[1]);
  EXPECT_EQ(pool.allocate(), pages[0]);
  EXPECT_EQ(pool.find("a"), std::nullopt);
  EXPECT_EQ(pool.find("b"), pages[1]);
  EXPECT_EQ(pool.find("c"), pages[2]);
}

TEST(PagePool, KeepsAPageWhileAnyoneHasIt) {
  PagePool pool(1);
  const int32_t page = *pool.allocate();
  pool.share(page);
  pool.release(page);
  EXPECT_EQ(pool.references(page), 1);
  EXPECT_EQ(pool.allocate(), std::nullopt);
  pool.release(page);
  EXPECT_EQ(pool.free(), 1) << "it was not published";
  EXPECT_THROW(pool.release(page), Error);
}

TEST(PagePool, PublishesAContentOnce) {
  PagePool pool(2);
  const int32_t first = *pool.allocate(), second = *pool.allocate();
  pool.publish(first, "same");
  pool.publish(second, "same");
  EXPECT_EQ(pool.find("same"), first);
  pool.release(second);
  EXPECT_EQ(pool.free(), 1);
  pool.release(first);
  EXPECT_EQ(pool.cached(), 1);
}

} // namespace
} // namespace fvlm::infer
