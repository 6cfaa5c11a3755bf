//! Which handler a method and path lead to, and which URL parameters it takes.
//!
//! A path is a list of segments; `{name}` takes any segment. A literal segment wins over a name. Trailing slashes do not
//! count. HEAD is served wherever GET is.

use crate::{Context, params::decode, reply::Reply};
use futures::future::BoxFuture;
use http::Method;
use segmentry_coordinator::ApiError;
use std::collections::BTreeMap;

/// What carries out a request.
pub type Handler = fn(Context) -> BoxFuture<'static, Result<Reply, ApiError>>;

/// One endpoint.
#[derive(Clone, Copy)]
pub struct Route {
    /// Methods, as they are written in HTTP.
    pub methods: &'static [&'static str],
    /// Pattern, e.g. `/{index}/_doc/{id}`.
    pub path: &'static str,
    /// URL parameters beyond the common ones.
    pub params: &'static [&'static str],
    /// Handler.
    pub handler: Handler,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Route")
            .field("methods", &self.methods)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Where a request leads.
pub enum Found {
    /// To this route, with the named segments.
    Route(Route, BTreeMap<&'static str, String>),
    /// The path is known and the method is not; these are.
    Method(Vec<&'static str>),
    /// Nowhere.
    Nothing,
}

/// Finds the route of a method and a raw path.
///
/// # Errors
/// A broken percent escape.
pub fn find(routes: &[Route], method: &Method, path: &str) -> Result<Found, ApiError> {
    let segments: Vec<String> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| decode(segment, false))
        .collect::<Result<_, _>>()?;
    let mut best: Option<(Route, usize)> = None;
    let mut methods = Vec::new();
    for route in routes {
        let Some(literals) = fits(route.path, &segments) else {
            continue;
        };
        for known in route.methods {
            if !methods.contains(known) {
                methods.push(*known);
            }
        }
        let serves = route.methods.contains(&method.as_str())
            || (method == Method::HEAD && route.methods.contains(&"GET"));
        if serves && best.as_ref().is_none_or(|(_, most)| literals > *most) {
            best = Some((*route, literals));
        }
    }
    Ok(match best {
        Some((route, _)) => {
            let named = route
                .path
                .split('/')
                .filter(|part| !part.is_empty())
                .zip(segments)
                .filter_map(|(part, segment)| Some((name_of(part)?, segment)))
                .collect();
            Found::Route(route, named)
        }
        None if methods.is_empty() => Found::Nothing,
        None => {
            if methods.contains(&"GET") && !methods.contains(&"HEAD") {
                methods.push("HEAD");
            }
            Found::Method(methods)
        }
    })
}

fn name_of(part: &'static str) -> Option<&'static str> {
    part.strip_prefix('{')?.strip_suffix('}')
}

/// The number of literal segments where the pattern fits.
fn fits(pattern: &'static str, segments: &[String]) -> Option<usize> {
    let parts: Vec<&'static str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    if parts.len() != segments.len() {
        return None;
    }
    let mut literals = 0;
    for (part, segment) in parts.iter().zip(segments) {
        match name_of(part) {
            // A segment with an underscore in front is an endpoint of its own, `_all` apart: never the name of an index.
            Some("index") if segment.starts_with('_') && segment != "_all" => return None,
            Some(_) => {}
            None if *part == segment => literals += 1,
            None => return None,
        }
    }
    Some(literals)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
    use super::*;

    fn handler(_: Context) -> BoxFuture<'static, Result<Reply, ApiError>> {
        Box::pin(async { Ok(Reply::text(String::new())) })
    }

    const fn route(methods: &'static [&'static str], path: &'static str) -> Route {
        Route {
            methods,
            path,
            params: &[],
            handler,
        }
    }

    const ROUTES: [Route; 5] = [
        route(&["GET"], "/"),
        route(&["POST", "PUT"], "/_bulk"),
        route(&["GET", "PUT"], "/{index}"),
        route(&["GET"], "/_nodes/{id}"),
        route(&["GET"], "/_nodes/stats"),
    ];

    fn lead(method: Method, path: &str) -> String {
        match find(&ROUTES, &method, path).unwrap() {
            Found::Route(route, named) => format!("{} {named:?}", route.path),
            Found::Method(methods) => methods.join(","),
            Found::Nothing => "nothing".into(),
        }
    }

    #[test]
    fn paths_lead_to_the_most_literal_route() {
        assert_eq!(lead(Method::GET, "/"), "/ {}");
        assert_eq!(lead(Method::HEAD, "/"), "/ {}");
        assert_eq!(lead(Method::POST, "/_bulk/"), "/_bulk {}");
        assert_eq!(lead(Method::GET, "/a%2Db"), r#"/{index} {"index": "a-b"}"#);
        assert_eq!(lead(Method::GET, "/_nodes/stats"), "/_nodes/stats {}");
        assert_eq!(lead(Method::GET, "/_nodes/x"), r#"/_nodes/{id} {"id": "x"}"#);
        assert_eq!(lead(Method::DELETE, "/_bulk"), "POST,PUT");
        assert_eq!(lead(Method::POST, "/a"), "GET,PUT,HEAD");
        assert_eq!(lead(Method::GET, "/_foo"), "nothing");
        assert_eq!(lead(Method::GET, "/a/b"), "nothing");
        assert_eq!(lead(Method::PUT, "/_all"), r#"/{index} {"index": "_all"}"#);
    }
}
