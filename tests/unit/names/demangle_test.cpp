#include "daemon/names/demangle.hpp"

#include <doctest/doctest.h>

#include <string>

namespace probed::names {

TEST_CASE("C++ and Rust names become readable, others stay what they are") {
  CHECK(demangle("_ZN2ns1fEi") == "ns::f(int)");
  CHECK(demangle("_ZN2ns1fEi.constprop.0") == "ns::f(int)");
  CHECK(demangle("main").empty());
  CHECK(demangle("_Zgarbage").empty());
  CHECK(demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE") == "core::fmt::Formatter::pad");
  CHECK(demangle("_ZN42_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$X$GT$4drop17h0123456789abcdefE")
            .empty());  // wrong length
  CHECK(demangle("_ZN27_$LT$$RF$T$u20$as$u20$X$GT$4drop17h0123456789abcdefE") == "<&T as X>::drop");
}

TEST_CASE("a readable name falls into the parts that people type") {
  struct Row {
    std::string text, full, name, bare;
  };
  const Row rows[] = {
      {"f(int)", "f(int)", "f", "f"},
      {"ns::C::f(char, int) const", "ns::C::f(char, int) const", "ns::C::f", "ns::C::f"},
      {"int ns::f<int>(char)", "ns::f<int>(char)", "ns::f<int>", "ns::f"},
      {"std::vector<int, std::allocator<int> >::push_back(int&&)",
       "std::vector<int, std::allocator<int> >::push_back(int&&)", "std::vector<int, std::allocator<int> >::push_back",
       "std::vector<int, std::allocator<int> >::push_back"},
      {"C::operator()(int)", "C::operator()(int)", "C::operator()", "C::operator()"},
      {"C::operator unsigned int() const", "C::operator unsigned int() const", "C::operator unsigned int",
       "C::operator unsigned int"},
      {"bool operator< <int>(X<int>, int)", "operator< <int>(X<int>, int)", "operator< <int>", "operator< <int>"},
      {"(anonymous namespace)::f(void (*)(int))", "(anonymous namespace)::f(void (*)(int))", "(anonymous namespace)::f",
       "(anonymous namespace)::f"},
      {"(anonymous namespace)::f", "(anonymous namespace)::f", "(anonymous namespace)::f", "(anonymous namespace)::f"},
      {"int ns::(anonymous namespace)::f<char>(int)", "ns::(anonymous namespace)::f<char>(int)",
       "ns::(anonymous namespace)::f<char>", "ns::(anonymous namespace)::f"},
      {"f(int)::counter", "f(int)::counter", "f(int)::counter", "f(int)::counter"},
      {"(anonymous namespace)::f(int) [clone .cold]", "(anonymous namespace)::f(int) [clone .cold]",
       "(anonymous namespace)::f", "(anonymous namespace)::f"},
      {"f[abi:cxx11](int)", "f[abi:cxx11](int)", "f[abi:cxx11]", "f[abi:cxx11]"},
      {"main::{lambda(int, char)#1}::operator()(int, char) const",
       "main::{lambda(int, char)#1}::operator()(int, char) const", "main::{lambda(int, char)#1}::operator()",
       "main::{lambda(int, char)#1}::operator()"},
      {"vtable for ns::C", "vtable for ns::C", "vtable for ns::C", "vtable for ns::C"},
      {"ns::counter", "ns::counter", "ns::counter", "ns::counter"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const NameParts parts = split_name(row.text);
    CHECK(parts.full == row.full);
    CHECK(parts.name == row.name);
    CHECK(parts.bare == row.bare);
  }
}

TEST_CASE("a name says how many parameters its function has, or nothing about them") {
  CHECK(parameters_in("f()") == 0);
  CHECK(parameters_in("ns::C::f(int, std::map<int, char>, int (*)(int, long)) const") == 3);
  CHECK(parameters_in("int f<int, char>(int, char)") == 2);
  CHECK(parameters_in("f(char const*, ...)") == 1);
  CHECK(parameters_in("main::{lambda(int, char)#1}::operator()(int, char) const") == 2);
  CHECK(parameters_in("C::operator->(A<(B)1, 2>)") == 1);
  CHECK(parameters_in("ns::counter") == std::nullopt);
  CHECK(parameters_in("") == std::nullopt);
}

TEST_CASE("namespaces without a name are left out of one") {
  CHECK(without_unnamed("ns::(anonymous namespace)::C::f(int)") == "ns::C::f(int)");
  CHECK(without_unnamed("(anonymous namespace)::(anonymous namespace)::f") == "f");
  CHECK(without_unnamed("ns::f") == "ns::f");
}

TEST_CASE("names are compared in one of their spellings") {
  const std::string one = in_one_spelling(
      "ns::f(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > const&, int const*)");
  CHECK(one == "ns::f(std::stringconst&,intconst*)");
  CHECK(in_one_spelling("ns::f(const std::string&, const int*)") == one);
  CHECK(in_one_spelling("ns::f(std::string const &,int const *)") == one);
  CHECK(in_one_spelling("f(const std::map<int, const A*>&)") == "f(std::map<int,Aconst*>const&)");
  CHECK(in_one_spelling("f(std::basic_string_view<char, std::char_traits<char> >)") == "f(std::string_view)");
  CHECK(in_one_spelling("C::f(int) const") == "C::f(int)const");
  CHECK(in_one_spelling("f(const ") == "f(const");
  CHECK(in_one_spelling("f(") == "f(");
  for (const char* odd :
       {"f(const const const)", "f(const const)", "f( const  )", "(const ", "const const ", "<const <const "})
    CHECK(in_one_spelling(odd) != one);
  CHECK(in_one_spelling("C::f(int*) const") != in_one_spelling("C::f(int*)"));
  CHECK(in_one_spelling("f(char* const)") != in_one_spelling("f(char const*)"));
}

TEST_CASE("scopes may have been left out of a name") {
  CHECK(leaves_out_scopes("ns::f", "ns::v1::f"));
  CHECK(leaves_out_scopes("ns::f", "a::ns::v1::f"));
  CHECK(leaves_out_scopes("C<a::b>::f", "ns::C<a::b>::f"));
  CHECK(leaves_out_scopes("f", "ns::f"));
  CHECK_FALSE(leaves_out_scopes("ns::f", "ns::f"));
  CHECK_FALSE(leaves_out_scopes("f::ns", "ns::v1::f"));
  CHECK_FALSE(leaves_out_scopes("a::f", "ns::v1::f"));
  CHECK_FALSE(leaves_out_scopes("v1::ns::f", "ns::v1::x::f"));
  CHECK_FALSE(leaves_out_scopes("f", "g<ns::f>"));
  CHECK_FALSE(leaves_out_scopes("", "ns::f"));
}

TEST_CASE("parts of a name stand for a function, but not without its last one") {
  const auto is_short = [](std::string_view typed, std::string_view name) {
    return is_short_for(split_name(typed), split_name(name));
  };
  const char* const handle =
      "shop::Service::handle(int, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > "
      "const&) const";
  for (const char* typed : {"handle", "Service::handle", "shop::handle", "shop::Service::handle",
                            "handle(int, const std::string&)", "Service::handle(int,std::string const&)"})
    CHECK_MESSAGE(is_short(typed, handle), typed);
  for (const char* typed : {"Service", "andle", "Other::handle", "Service::shop::handle", "handle(int)", "", "::"})
    CHECK_FALSE_MESSAGE(is_short(typed, handle), typed);
  const char* const put =
      "int shop::Box<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >::put<int>(int)";
  for (const char* typed : {"put", "Box::put", "Box<std::string>::put", "shop::Box<std::string>::put<int>", "put<int>"})
    CHECK_MESSAGE(is_short(typed, put), typed);
  for (const char* typed : {"Box<int>::put", "put<long>", "Box"}) CHECK_FALSE_MESSAGE(is_short(typed, put), typed);
  CHECK(is_short("operator<", "ns::operator<(ns::X const&, ns::X const&)"));
  CHECK(as_one_word(handle) == "shop::Service::handle(int,std::string const&)const");
}

TEST_CASE("ABI tags are told from the rest of a name") {
  CHECK(without_abi_tags("f[abi:cxx11](int)") == "f(int)");
  CHECK(without_abi_tags("C[abi:a][abi:b]::f[abi:c]<int>") == "C::f<int>");
  CHECK(without_abi_tags("f[abi:") == "f[abi:");
  CHECK(without_abi_tags("C::operator[](int)") == "C::operator[](int)");
  CHECK_FALSE(has_abi_tag("C::operator[](int)"));
}

TEST_CASE("what follows the parameters is told from them; a name is written as one word") {
  CHECK(without_qualifiers("C::f(int) const") == "C::f(int)");
  CHECK(without_qualifiers("C::f(int) const volatile &&") == "C::f(int)");
  CHECK(without_qualifiers("C::f(int)") == "C::f(int)");
  CHECK(without_qualifiers("C::operator char const") == "C::operator char const");
  CHECK(as_one_word("unsigned long ns::f<int, char>(unsigned long, char const*)") ==
        "ns::f<int,char>(unsigned long,char const*)");
  CHECK(as_one_word("C::f(std::vector<int, std::allocator<int> >) const") ==
        "C::f(std::vector<int,std::allocator<int>>)const");
  CHECK(as_one_word("bool operator< <int>(X<int>, int)") == "operator< <int>(X<int>, int)");
}

TEST_CASE("the compiler's suffixes are told from names, and pieces from whole functions") {
  CHECK(without_clone_suffix("foo.constprop.0") == "foo");
  CHECK(without_clone_suffix("foo.isra.0.part.1") == "foo");
  CHECK(without_clone_suffix("foo.cold") == "foo");
  CHECK(without_clone_suffix("foo.lto_priv.12.cold") == "foo");
  CHECK(without_clone_suffix("foo.llvm.1234") == "foo");
  CHECK(without_clone_suffix("counter.3") == "counter.3");
  CHECK(without_clone_suffix("foo.bar") == "foo.bar");
  CHECK(without_clone_suffix(".cold") == ".cold");
  CHECK(without_clone_suffix("main.init.0") == "main.init.0");  // Go
  CHECK(is_fragment("foo.cold"));
  CHECK(is_fragment("foo.part.0"));
  CHECK(is_fragment("foo.constprop.0.cold"));
  CHECK_FALSE(is_fragment("foo.constprop.0"));
  CHECK_FALSE(is_fragment("foo.partial"));
}

TEST_CASE("names that would unfold into gigabytes are left alone") {
  // Each S<n>_ pair doubles what the one before printed.
  std::string bomb = "_Z1f1aIiiE";
  const char* digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string previous = "S0_";
  for (int i = 1; i < 34; ++i) {
    bomb += "1bI" + previous + previous + "E";
    previous = std::string("S") + digits[i] + "_";
  }
  CHECK(demangled_bound(bomb) > (1u << 30));
  CHECK(demangle(bomb).empty());
  // A long but honest one isn't.
  const std::string honest =
      "_ZNSt8_Rb_treeINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESt4pairIKS5_S5_ESt10_Select1stIS8_"
      "ESt4lessIS5_"
      "ESaIS8_EE22_M_emplace_hint_uniqueIJRKSt21piecewise_construct_tSt5tupleIJRS7_EESJ_IJEEEEESt17_Rb_tree_"
      "iteratorIS8_"
      "ESt23_Rb_tree_const_iteratorIS8_EDpOT_";
  CHECK_FALSE(demangle(honest).empty());
}

}  // namespace probed::names
