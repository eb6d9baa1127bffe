// strings: C++ functions whose parameters are strings and what holds them. On command, one a line, it calls them and
// prints what their values were, as JSON:
//   take N   one call of shop::Till::take() with the N-th text, by every way to hand it over
//   say      one call of each shop::say() and shop::pass<>()
//   hold N   one call of shop::Till::hold() with what holds something for others, one of shop::head() and of
//   shop::add<>()
//   maybe N  one call of shop::maybe() with values for N > 0, else without, where there were some before
//   choose N one call of shop::choose() with the N-th alternative, 5: with none
//   list N   one call of shop::list() with vectors of N elements each, of which the last `3 - N` have been taken out
//   texts    how many texts there are
//   quit
// Built with several compilers and options (meson.build): the values don't depend on them, their places do.
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "protocol.h"

#define KEEP(value) __asm__ volatile("" : : "g"(value) : "memory")

namespace shop {

struct Item {
  int id;
  std::string name;
  std::string_view view;
  const std::string* pointer;
  Item* next;
  std::string notes[2];
};

class Till {
 public:
  TARGET_FUNCTION int take(const std::string& by_reference, std::string by_value, const std::string* by_pointer,
                           std::string_view view, const Item& item, int last);
  TARGET_FUNCTION int hold(const std::unique_ptr<Item>& unique, const std::shared_ptr<Item>& shared,
                           const std::optional<std::string>& full, const std::optional<int>& empty,
                           const std::vector<Item>& items, const std::array<int, 3>& three,
                           const std::variant<int, std::string>& one_of, int taken);
  std::string owner = "the till's owner";
  int taken = 0;  // hidden by a parameter
  int sold = 0;
};

int Till::hold(const std::unique_ptr<Item>& unique, const std::shared_ptr<Item>& shared,
               const std::optional<std::string>& full, const std::optional<int>& empty, const std::vector<Item>& items,
               const std::array<int, 3>& three, const std::variant<int, std::string>& one_of, int taken) {
  KEEP(&unique);
  KEEP(&shared);
  KEEP(&full);
  KEEP(&empty);
  KEEP(&items);
  KEEP(&three);
  KEEP(&one_of);
  return taken + sold;
}

struct Sale {
  int id;
  std::string name;
  const Sale* next;
};
struct Price {
  int whole;
  std::optional<int> rest;
};

TARGET_FUNCTION int maybe(std::optional<int> number, const std::optional<Sale>& sale, const std::optional<Price>& price,
                          const std::optional<const char*>& text, const std::optional<std::array<int, 3>>& three) {
  KEEP(&number);
  KEEP(&sale);
  KEEP(&price);
  KEEP(&text);
  KEEP(&three);
  return number.value_or(0);
}

struct Thrower {
  std::string text;
  explicit Thrower(int number) { throw number; }
};
using Choice = std::variant<std::monostate, int, Sale, double, Thrower>;
TARGET_FUNCTION int choose(const Choice& choice, const std::optional<std::variant<int, std::string>>& perhaps,
                           const std::array<std::variant<short, const char*>, 2>& two) {
  KEEP(&choice);
  KEEP(&perhaps);
  KEEP(&two);
  return static_cast<int>(choice.index());
}

using Table = std::vector<std::vector<int>>;
TARGET_FUNCTION int list(const std::vector<int>& numbers, std::vector<Sale>* sales, const Table& table,
                         const std::vector<const char*>& texts, const std::optional<std::vector<short>>& perhaps) {
  KEEP(&numbers);
  KEEP(sales);
  KEEP(&table);
  KEEP(&texts);
  KEEP(&perhaps);
  return static_cast<int>(numbers.size());
}

TARGET_FUNCTION std::string_view head(const char* text, std::size_t length) {
  KEEP(text);
  return {text, length};
}

int fold_line;
TARGET_FUNCTION int fold(int outer) {
  fold_line = __LINE__ + 2;
  // clang-format off
  const auto more = [](int own) __attribute__((noinline)) { KEEP(own); return own + 1; }; const int sum = more(outer) + 2;
  // clang-format on
  KEEP(outer);
  return sum;
}

template <class... T>
TARGET_FUNCTION long add(int first, T... rest) {
  KEEP(first);
  return first + (static_cast<long>(rest) + ...);
}

int Till::take(const std::string& by_reference, std::string by_value, const std::string* by_pointer,
               std::string_view view, const Item& item, int last) {
  KEEP(&by_reference);
  KEEP(&by_value);
  KEEP(by_pointer);
  KEEP(view.data());
  KEEP(&item);
  return last + static_cast<int>(by_reference.size() + owner.size() + view.size());
}

TARGET_FUNCTION int say(int number) {
  KEEP(number);
  return number + 1;
}
TARGET_FUNCTION int say(double real) {
  KEEP(&real);
  return 2;
}
TARGET_FUNCTION int say(const std::string& text) {
  KEEP(&text);
  return 3;
}

template <class T>
TARGET_FUNCTION int pass(const T& value) {
  KEEP(&value);
  return 4;
}
template int pass<int>(const int&);
template int pass<std::string>(const std::string&);

}  // namespace shop

namespace {

// Those that fit into the string itself end at 15 bytes; what is shown, at 512.
const std::string texts[] = {"",
                             "short",
                             "fifteen bytes.",
                             "fifteen bytes..",
                             "sixteen bytes...",
                             std::string("a zero\0inside", 13),
                             std::string(300, 'x') + "\"end\"",
                             std::string(512, 'y'),
                             std::string(5000, 'z')};
constexpr int kTexts = sizeof texts / sizeof texts[0];

std::string json(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\0') {
      out += "\\u0000";
      continue;
    }
    if (c == '"') out += '\\';
    out += c;
  }
  return out + "\"";
}

void take(int n) {
  std::string text = texts[n];
  const std::string other = "of item " + std::to_string(n);
  shop::Item second{n + 1, other, std::string_view(text).substr(text.size() / 2), nullptr, nullptr, {"", text}};
  shop::Item first{n, text, other, &text, &second, {"first note", "second note, which is longer"}};
  shop::Till till;
  // Not up to its zero.
  const std::string_view view = std::string_view(text).substr(0, text.size() / 2);
  till.take(text, text, &text, view, first, n);
  printf("{\"text\":%s,\"view\":%s,\"rest\":%s,\"other\":%s,\"owner\":%s}\n", json(text).c_str(), json(view).c_str(),
         json(second.view).c_str(), json(other).c_str(), json(till.owner).c_str());
}

void hold(int n) {
  const auto item = [](int id) { return shop::Item{id, "item", "view", nullptr, nullptr, {}}; };
  const auto unique = std::make_unique<shop::Item>(item(n + 1));
  const auto shared = std::make_shared<shop::Item>(item(n + 2));
  shop::Till till;
  till.sold = n + 3;
  till.hold(unique, shared, "full", std::nullopt, {item(n + 4), item(n + 5)}, {n, n + 1, n + 2}, "text", n);
  shop::head("a head of it", 6);
  shop::add(n, 2L, 3.5, 'x');
  shop::fold(n);
  printf("{\"unique\":\"%p\",\"fold\":%d}\n", static_cast<void*>(unique.get()), shop::fold_line);
}

void maybe(int n) {
  static const shop::Sale other{n + 1, "the other", nullptr};
  std::optional<int> number = 77;
  std::optional<shop::Sale> sale = shop::Sale{78, "stale", &other};
  std::optional<shop::Price> price = shop::Price{79, 80};
  std::optional<const char*> text = "stale";
  std::optional<std::array<int, 3>> three = std::array<int, 3>{7, 8, 9};
  if (n > 0) {
    number = n;
    sale->id = n;
    sale->name = "sold";
    price->whole = n;
    price->rest.reset();
    text = "text";
  } else {
    number.reset();
    sale.reset();
    price.reset();
    text.reset();
    three.reset();
  }
  shop::maybe(number, sale, price, text, three);
  printf("{}\n");
}

void choose(int n) {
  static const shop::Sale other{n + 1, "the other", nullptr};
  shop::Choice choice = shop::Sale{42, "sold", &other};
  std::optional<std::variant<int, std::string>> perhaps = "text";
  if (n == 0) choice = std::monostate();
  if (n == 1) choice = 41;
  if (n == 3) choice = 0.5;
  if (n == 5) {
    perhaps.reset();
    try {
      choice.emplace<4>(1);
    } catch (int) {
    }
  }
  shop::choose(choice, perhaps, {static_cast<short>(-n), "two"});
  printf("{\"index\":%d}\n", choice.valueless_by_exception() ? -1 : static_cast<int>(choice.index()));
}

// What is taken out of a vector stays where it was.
void list(int n) {
  static const shop::Sale other{4, "the other", nullptr};
  const auto size = static_cast<std::size_t>(n);
  std::vector<int> numbers = {1, 2, 3};
  std::vector<shop::Sale> sales = {{1, "one", &other}, {2, "two", &other}, {3, "three", &other}};
  shop::Table table = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  std::vector<const char*> texts = {"one", "two", "three"};
  std::optional<std::vector<short>> perhaps = std::vector<short>{1, 2, 3};
  numbers.resize(size);
  sales.erase(sales.begin() + n, sales.end());
  table.resize(size);
  for (auto& row : table) row.resize(size);
  texts.resize(size);
  perhaps->resize(size);
  if (n == 0) perhaps.reset();
  shop::list(numbers, &sales, table, texts, perhaps);
  printf("{}\n");
}

void say() {
  const std::string text = "said";
  shop::say(41);
  shop::say(2.5);
  shop::say(text);
  shop::pass(7);
  shop::pass(text);
  printf("{}\n");
}

void obey(const char* line) {
  int n = 0;
  if (sscanf(line, "take %d", &n) == 1 && n >= 0 && n < kTexts)
    take(n);
  else if (strcmp(line, "say") == 0)
    say();
  else if (sscanf(line, "hold %d", &n) == 1)
    hold(n);
  else if (sscanf(line, "list %d", &n) == 1 && n >= 0 && n <= 3)
    list(n);
  else if (sscanf(line, "choose %d", &n) == 1)
    choose(n);
  else if (sscanf(line, "maybe %d", &n) == 1)
    maybe(n);
  else if (strcmp(line, "texts") == 0)
    printf("%d\n", kTexts);
  else if (strcmp(line, "go") != 0)
    printf("unknown command\n");
  fflush(stdout);
}

}  // namespace

int main() {
  target_ready("strings");
  for (char line[128]; target_line(line, sizeof line), strcmp(line, "quit") != 0;) obey(line);
  return target_result(1);
}
