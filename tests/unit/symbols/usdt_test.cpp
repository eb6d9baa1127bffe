// The notes of static probes, and what they say of arguments; debug files that aren't where symbols are.
#include "daemon/elf/usdt.hpp"

#include "daemon/symbols/debug_file.hpp"
#include "operands.hpp"
#include "support.hpp"

namespace probed::symbols::test {
namespace {

// For printf(1): "a0b1" becomes "\\240\\261", as sh's printf knows octal only.
std::string escaped(const std::string& hex) {
  std::string out;
  char octal[8];
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    std::snprintf(octal, sizeof octal, "\\%03lo", std::stoul(hex.substr(i, 2), nullptr, 16));
    out += octal;
  }
  return out;
}

}  // namespace

TEST_CASE("an argument is a size with a sign and an operand") {
  const auto arguments = elf::parse_usdt_arguments(kArguments);
  REQUIRE(arguments.size() == 7);
  CHECK(arguments[0].size == 4);
  CHECK(arguments[0].is_signed);
  CHECK(arguments[0].why_not.empty());
  CHECK(arguments[1].size == 8);
  CHECK_FALSE(arguments[1].is_signed);
  CHECK(arguments[1].text == kSecondArgument);
  CHECK(arguments[2].size == 1);
  CHECK(arguments[3].is_float);
  CHECK(arguments[3].why_not.empty());
  CHECK(contains(arguments[4].why_not, "size"));
  CHECK(contains(arguments[5].why_not, "isn't understood"));
  CHECK(arguments[6].size == 8);
  for (const elf::UsdtArgument& argument : elf::parse_usdt_arguments(kUnreadable))
    CHECK(contains(argument.why_not, "can't be read"));
  CHECK(elf::count_usdt_arguments("-4@%edi 8@-16(%rbp)") == 2);
  CHECK(elf::count_usdt_arguments("4@[sp, 12] 8@x0") == 2);
  CHECK(elf::count_usdt_arguments("") == 0);
  CHECK(elf::count_usdt_arguments("  ") == 0);
}

TEST_CASE("a file from a server is only used when it has the build-id that was asked for") {
  const std::string program = fixtures() + "/fixture_pie";
  const auto open = [](const std::string& path) { return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); };
  const auto id = value_of(elf::Image::from_fd(open(program), program)).build_id();
  REQUIRE_FALSE(id.empty());
  CHECK(fetch_debug_file(id, [&](auto) { return open(program); }).has_value());
  CHECK_FALSE(fetch_debug_file(id, [&](auto) { return open("/bin/true"); }));
  CHECK_FALSE(fetch_debug_file(id, [&](auto) { return open("/etc/passwd"); }));
  CHECK_FALSE(fetch_debug_file(id, [&](auto) { return UniqueFd(); }));
  CHECK_FALSE(fetch_debug_file(id, nullptr));
}

TEST_CASE("a supplementary file is found by its link, and only used when it has the link's build-id") {
  const std::string folder = fixtures() + "/supplementary";
  output_of("rm -rf " + folder + " && mkdir -p " + folder + "/root/.dwz/x86_64-linux-gnu");
  const std::string program = fixtures() + "/fixture_pie", other = folder + "/root/.dwz/x86_64-linux-gnu/shared.debug";
  output_of("cp " + program + " " + other);
  const auto open = [](const std::string& path) { return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); };
  const std::string id = elf::to_hex(value_of(elf::Image::from_fd(open(program), program)).build_id());
  const auto with_link = [&](const std::string& path, const std::string& build_id) {
    const std::string name = folder + "/linked", section = folder + "/section";
    output_of("{ printf '%s\\0' '" + path + "'; printf '" + escaped(build_id) + "'; } > " + section + " && objcopy " +
              "--add-section .gnu_debugaltlink=" + section + " " + program + " " + name);
    return value_of(elf::Image::from_fd(open(name), name));
  };
  const std::vector<std::string> roots{folder + "/root"};
  const std::string wrong(40, 'a');
  const std::string usual = "/usr/lib/debug/.dwz/x86_64-linux-gnu/shared.debug";
  CHECK(find_supplementary_file(with_link(other, id), folder + "/linked", {}, open).has_value());
  CHECK(find_supplementary_file(with_link("root/.dwz/x86_64-linux-gnu/shared.debug", id), folder + "/linked", {}, open)
            .has_value());
  CHECK(find_supplementary_file(with_link(usual, id), folder + "/linked", roots, open).has_value());
  CHECK_FALSE(find_supplementary_file(with_link(other, wrong), folder + "/linked", roots, open));
  CHECK_FALSE(find_supplementary_file(with_link("nowhere", wrong), folder + "/linked", roots, open));
  CHECK_FALSE(read_supplementary_link(value_of(elf::Image::from_fd(open(program), program))));
}

}  // namespace probed::symbols::test
