//! Analyzers of text fields, under the names of the mapping.
//!
//! | analyzer | tokens |
//! |---|---|
//! | `standard` | words, lowercased |
//! | `simple` | runs of letters, lowercased |
//! | `whitespace` | what stands between white space, as it is |
//! | `keyword` | the whole value |
//! | `english` | `standard` without possessive `'s`, without stop words, stemmed |
//!
//! Words follow Unicode's default word boundaries (UAX #29) as far as text needs them: letters, digits and `_` stick together;
//! `'`, `’`, `.`, `:` and `·` join letters; `'`, `’`, `.`, `,` and `;` join digits; Han and Hiragana characters stand alone; marks stay
//! with what they follow. Emoji are no tokens. A word longer than 255 characters is cut into pieces of 255, as OpenSearch does.

use tantivy::tokenizer::{
    Language, LowerCaser, RawTokenizer, Stemmer, StopWordFilter, TextAnalyzer, Token, TokenFilter,
    TokenStream, Tokenizer, TokenizerManager, WhitespaceTokenizer,
};

/// Longest token of `standard`, in characters.
const MAX_TOKEN_CHARS: usize = 255;

const STOP_WORDS: [&str; 33] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no",
    "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to",
    "was", "will", "with",
];

/// Name under which an analyzer of the mapping is registered; a mapping holds no other ones.
pub fn tokenizer_name(analyzer: Option<&str>) -> &'static str {
    match analyzer {
        Some("simple") => "sg_simple",
        Some("whitespace") => "sg_whitespace",
        Some("keyword") => "raw",
        Some("english") => "sg_english",
        _ => "sg_standard",
    }
}

/// All analyzers; registered before any index is opened, because a commit asks for those of all fields.
pub fn tokenizers() -> TokenizerManager {
    let manager = TokenizerManager::new();
    manager.register("raw", RawTokenizer::default());
    // tantivy looks this one up for fields that are no text, and never uses it.
    manager.register("default", RawTokenizer::default());
    manager.register(
        "sg_standard",
        TextAnalyzer::builder(Words::standard())
            .filter(LowerCaser)
            .build(),
    );
    manager.register(
        "sg_simple",
        TextAnalyzer::builder(Words::letters()).filter(LowerCaser).build(),
    );
    manager.register("sg_whitespace", WhitespaceTokenizer::default());
    manager.register(
        "sg_english",
        TextAnalyzer::builder(Words::standard())
            .filter(Possessive)
            .filter(LowerCaser)
            .filter(StopWordFilter::remove(
                STOP_WORDS.iter().map(|word| (*word).to_owned()),
            ))
            .filter(Stemmer::new(Language::English))
            .build(),
    );
    manager
}

/// What a character does to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    /// `_`: joins everything, makes no token alone.
    Connector,
    Katakana,
    /// A token of its own.
    Single,
    Mark,
    Other,
}

fn class(character: char) -> Class {
    match character {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        '0'..='9' => Class::Digit,
        '_' | '\u{203F}' | '\u{2040}' | '\u{FF3F}' => Class::Connector,
        '\u{300}'..='\u{36F}'
        | '\u{483}'..='\u{489}'
        | '\u{591}'..='\u{5C7}'
        | '\u{610}'..='\u{61A}'
        | '\u{64B}'..='\u{65F}'
        | '\u{94D}'
        | '\u{9CD}'
        | '\u{A4D}'
        | '\u{ACD}'
        | '\u{B4D}'
        | '\u{BCD}'
        | '\u{C4D}'
        | '\u{CCD}'
        | '\u{D4D}'
        | '\u{200C}'
        | '\u{200D}'
        | '\u{1AB0}'..='\u{1AFF}'
        | '\u{1DC0}'..='\u{1DFF}'
        | '\u{20D0}'..='\u{20FF}'
        | '\u{FE00}'..='\u{FE0F}'
        | '\u{FE20}'..='\u{FE2F}' => Class::Mark,
        '\u{3041}'..='\u{309F}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3400}'..='\u{4DBF}'
        | '\u{4E00}'..='\u{9FFF}'
        | '\u{F900}'..='\u{FAFF}'
        | '\u{20000}'..='\u{3FFFF}' => Class::Single,
        '\u{30A1}'..='\u{30FA}'
        | '\u{30FC}'..='\u{30FF}'
        | '\u{31F0}'..='\u{31FF}'
        | '\u{FF66}'..='\u{FF9D}' => Class::Katakana,
        other if other.is_alphabetic() => Class::Letter,
        other if other.is_numeric() => Class::Digit,
        _ => Class::Other,
    }
}

fn joins(character: char, class: Class) -> bool {
    match class {
        Class::Letter => matches!(character, '\'' | '\u{2019}' | '\u{2018}' | '.' | ':' | '\u{B7}'),
        Class::Digit => matches!(character, '\'' | '\u{2019}' | '\u{2018}' | '.' | ',' | ';'),
        _ => false,
    }
}

/// Words of a text.
#[derive(Clone)]
struct Words {
    only_letters: bool,
    token: Token,
}

impl Words {
    fn standard() -> Self {
        Self {
            only_letters: false,
            token: Token::default(),
        }
    }

    fn letters() -> Self {
        Self {
            only_letters: true,
            token: Token::default(),
        }
    }
}

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        self.token.reset();
        WordStream {
            text,
            at: 0,
            only_letters: self.only_letters,
            token: &mut self.token,
        }
    }
}

struct WordStream<'a> {
    text: &'a str,
    at: usize,
    only_letters: bool,
    token: &'a mut Token,
}

impl WordStream<'_> {
    /// End of the word that begins at `start`; none if no word begins there.
    fn word_end(&self, start: usize) -> Option<usize> {
        let rest = &self.text[start..];
        let mut characters = rest.char_indices().peekable();
        let (_, first) = characters.next()?;
        let mut last = class(first);
        if self.only_letters {
            if !first.is_alphabetic() {
                return None;
            }
            let length = rest
                .find(|character: char| !character.is_alphabetic())
                .unwrap_or(rest.len());
            return Some(start + length);
        }
        if matches!(last, Class::Other | Class::Mark) {
            return None;
        }
        let mut useful = last != Class::Connector;
        let mut count = 1;
        let mut end = first.len_utf8();
        while let Some((offset, character)) = characters.next() {
            let next = class(character);
            let goes_on = match (last, next) {
                (_, Class::Other) => {
                    // A joiner stays inside only if the same kind goes on behind it.
                    joins(character, last)
                        && characters.peek().is_some_and(|(_, after)| class(*after) == last)
                }
                (_, Class::Mark)
                | (Class::Katakana, Class::Katakana | Class::Connector)
                | (Class::Connector, Class::Katakana) => true,
                (Class::Single | Class::Katakana, _) | (_, Class::Single | Class::Katakana) => false,
                _ => true,
            };
            count += 1;
            if !goes_on || count > MAX_TOKEN_CHARS {
                break;
            }
            end = offset + character.len_utf8();
            if next != Class::Mark && next != Class::Other {
                last = next;
                useful |= next != Class::Connector;
            }
        }
        useful.then_some(start + end)
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        while let Some(character) = self.text[self.at..].chars().next() {
            let start = self.at;
            if let Some(end) = self.word_end(start) {
                self.at = end;
                self.token.position = self.token.position.wrapping_add(1);
                self.token.offset_from = start;
                self.token.offset_to = end;
                self.token.text.clear();
                self.token.text.push_str(&self.text[start..end]);
                return true;
            }
            self.at += character.len_utf8();
        }
        false
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

/// Takes `'s` from the end of a word.
#[derive(Clone)]
struct Possessive;

impl TokenFilter for Possessive {
    type Tokenizer<T: Tokenizer> = PossessiveTokenizer<T>;

    fn transform<T: Tokenizer>(self, inner: T) -> PossessiveTokenizer<T> {
        PossessiveTokenizer(inner)
    }
}

#[derive(Clone)]
struct PossessiveTokenizer<T>(T);

impl<T: Tokenizer> Tokenizer for PossessiveTokenizer<T> {
    type TokenStream<'a> = PossessiveStream<T::TokenStream<'a>>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Self::TokenStream<'a> {
        PossessiveStream(self.0.token_stream(text))
    }
}

struct PossessiveStream<T>(T);

impl<T: TokenStream> TokenStream for PossessiveStream<T> {
    fn advance(&mut self) -> bool {
        if !self.0.advance() {
            return false;
        }
        let text = &mut self.0.token_mut().text;
        let kept = ["'s", "'S", "\u{2019}s", "\u{2019}S"]
            .iter()
            .find_map(|ending| text.strip_suffix(ending))
            .map(str::len);
        if let Some(kept) = kept {
            text.truncate(kept);
        }
        true
    }

    fn token(&self) -> &Token {
        self.0.token()
    }

    fn token_mut(&mut self) -> &mut Token {
        self.0.token_mut()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    fn tokens(analyzer: &str, text: &str) -> Vec<String> {
        let mut analyzer = tokenizers().get(tokenizer_name(Some(analyzer))).unwrap();
        let mut stream = analyzer.token_stream(text);
        let mut out = Vec::new();
        while stream.advance() {
            out.push(stream.token().text.clone());
        }
        out
    }

    #[test]
    fn standard_splits_at_word_boundaries_and_lowercases() {
        assert_eq!(
            tokens(
                "standard",
                "The 2 QUICK Brown-Foxes jumped over the lazy dog's bone."
            ),
            [
                "the", "2", "quick", "brown", "foxes", "jumped", "over", "the", "lazy", "dog's", "bone"
            ]
        );
        assert_eq!(
            tokens("standard", "1,000.5 a.b.c www.example.com x_1 a,b 3. don't"),
            [
                "1,000.5",
                "a.b.c",
                "www.example.com",
                "x_1",
                "a",
                "b",
                "3",
                "don't"
            ]
        );
        assert_eq!(
            tokens("standard", "東京 ひら カタカナ Ünïcödé e\u{301}a ___ !?"),
            ["東", "京", "ひ", "ら", "カタカナ", "ünïcödé", "e\u{301}a"]
        );
        assert_eq!(tokens("standard", ""), Vec::<String>::new());
    }

    #[test]
    fn a_word_longer_than_the_limit_is_cut() {
        let pieces = tokens("standard", &"x".repeat(600));
        assert_eq!(pieces.iter().map(String::len).collect::<Vec<_>>(), [255, 255, 90]);
    }

    #[test]
    fn the_other_analyzers_do_what_their_names_say() {
        assert_eq!(tokens("simple", "It's 2 Good"), ["it", "s", "good"]);
        assert_eq!(tokens("whitespace", "It's 2\tGood!"), ["It's", "2", "Good!"]);
        assert_eq!(tokens("keyword", "It's 2 Good"), ["It's 2 Good"]);
        assert_eq!(
            tokens("english", "The dog's foxes are running"),
            ["dog", "fox", "run"]
        );
    }

    #[test]
    fn every_analyzer_of_the_mapping_is_registered() {
        for analyzer in segmentry_mapping::json::ANALYZERS {
            assert!(
                tokenizers().get(tokenizer_name(Some(analyzer))).is_some(),
                "{analyzer}"
            );
        }
    }
}
