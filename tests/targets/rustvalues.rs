// rustvalues: Rust functions with parameters of every common kind. On command, one a line, it calls them and prints what
// their values were, as JSON:
//   lines    {"take":N,"place":N}: lines of this file behind the functions' entries
//   call N   one call of take(), then of place()
//   quit
// Built with several optimisation levels (meson.build): the values don't depend on them, their places do.
use std::arch::asm;
use std::io::{BufRead, Write};

#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Colour {
    Blue = 1,
    Red = 5,
    Green = 200,
}

pub struct Point {
    pub x: i32,
    pub y: i32,
}

pub struct Order {
    pub id: u64,
    pub title: String,
    pub note: &'static str,
    pub at: Point,
    pub paid: bool,
    pub colour: Colour,
    pub next: Option<Box<Order>>,
}

// The value is needed here, wherever the compiler keeps it.
#[inline(always)]
fn keep<T>(value: &T) {
    unsafe { asm!("/* {0} */", in(reg) value as *const T, options(nostack, preserves_flags)) }
}

#[inline(never)]
pub fn take(number: i32, byte: u8, long: i64, word: u64, flag: bool, real: f64, text: &str, owned: &String) -> i64 {
    let sum = number as i64 ^ byte as i64 ^ long ^ word as i64 ^ flag as i64 ^ real as i64;
    keep(&sum); // TAKE
    sum ^ text.len() as i64 ^ owned.len() as i64
}

#[inline(never)]
pub fn place(order: &Order, colour: Colour, moved: String, small: i16) -> i64 {
    let sum = order.id as i64 ^ order.title.len() as i64 ^ colour as i64 ^ moved.len() as i64;
    keep(&sum); // PLACE
    sum ^ small as i64 ^ order.at.x as i64 ^ order.next.is_some() as i64 ^ order.note.len() as i64
}

fn line_of(mark: &str) -> usize {
    let wanted = format!("// {}", mark);
    include_str!("rustvalues.rs").lines().position(|line| line.ends_with(&wanted)).unwrap() + 1
}

fn call(n: i64) {
    let owned = format!("owned {}", n);
    let text = &"some text that is cut"[..4 + n as usize % 10];
    let (number, long, word) = (n as i32 - 3, -5_000_000_000 - n, 0xffff_ffff_ffff_0000 + n as u64);
    let (flag, real) = (n % 2 == 0, n as f64 + 0.5);
    let colour = if flag { Colour::Red } else { Colour::Blue };
    let order = Order {
        id: 1 << 40 | n as u64,
        title: format!("title of {}", n),
        note: "a note",
        at: Point { x: n as i32, y: -7 },
        paid: !flag,
        colour: Colour::Green,
        next: None,
    };
    let first = take(number, 200, long, word, flag, real, text, &owned);
    let second = place(&order, colour, format!("moved {}", n), -8);
    println!(
        "{{\"take\":{{\"number\":{},\"byte\":200,\"long\":{},\"word\":{},\"flag\":{},\"real\":{},\"text\":\"{}\",\
         \"owned\":\"{}\"}},\"place\":{{\"colour\":\"{}\",\"moved\":\"moved {}\",\"small\":-8}},\
         \"order\":{{\"id\":{},\"title\":\"{}\",\"note\":\"{}\",\"x\":{},\"y\":{},\"paid\":{},\"green\":\"Green\"}},\
         \"results\":[{},{}]}}",
        number, long, word, flag, real, text, owned, if flag { "Red" } else { "Blue" }, n, order.id, order.title,
        order.note, order.at.x, order.at.y, order.paid, first, second
    );
}

fn main() {
    keep(&Colour::Green);
    println!("ready {} rustvalues", std::process::id());
    let input = std::io::stdin();
    for line in input.lock().lines() {
        std::io::stdout().flush().unwrap();
        match line.unwrap().as_str() {
            "quit" => break,
            "lines" => println!("{{\"take\":{},\"place\":{}}}", line_of("TAKE"), line_of("PLACE")),
            other => call(other.strip_prefix("call ").unwrap_or("0").parse().unwrap()),
        }
    }
    println!("result ok");
}
