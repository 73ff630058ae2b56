"""The tasks of bench/agents, run inside its virtual environment: agent_tasks.py FRAMEWORK PORT TASKS [TRANSCRIPTS].

Prints a JSON line per task: {"task", "outcome", "seconds", "calls"}. outcome is "finished", or what was missing:
"no report" (the third tool was never called), "wrong report", "no city", "no temperature" (a report without the tool
that it needs), or the name of the exception that ended the framework. The third tool ends the run where the
framework has means for that (smolagents has a tool of its own, final_answer): a model of this size does not know when
to stop.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx

PEOPLE = [
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Elena",
    "Felix",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Karin",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Paul",
    "Rosa",
    "Simon",
    "Tina",
    "Viktor",
]
CITIES = ["Paris", "Berlin", "Rome", "Oslo", "Madrid", "Vienna", "Dublin", "Prague", "Athens", "Lisbon"]
SYSTEM = "You are a helpful assistant. Use the tools to do what the user asks, one step at a time."
TURNS, TOKENS = 8, 160


def city_of(person):
    return CITIES[PEOPLE.index(person) % len(CITIES)]


def degrees_in(city):
    return 3 + 7 * CITIES.index(city) % 29


def wish(person):
    return "Find out in which city %s lives, then get the temperature of that city, then report it." % person


class World:
    """What the tools did."""

    def __init__(self, person):
        self.person, self.calls = person, []

    def find_city(self, person):
        self.calls.append(["find_city", person])
        known = [p for p in PEOPLE if p.lower() == str(person).strip().lower()]
        return city_of(known[0]) if known else "unknown person"

    def get_temperature(self, city):
        self.calls.append(["get_temperature", city])
        known = [c for c in CITIES if c.lower() == str(city).strip().lower()]
        return "%d degrees Celsius" % degrees_in(known[0]) if known else "unknown city"

    def report(self, city, temperature):
        self.calls.append(["report", city, temperature])
        return "reported: everything is done"

    def outcome(self):
        city = city_of(self.person)
        told = [c for c in self.calls if c[0] == "report"]
        if not told:
            return "no report"
        if not any(c[0] == "find_city" and str(c[1]).lower() == self.person.lower() for c in self.calls):
            return "no city"
        if not any(c[0] == "get_temperature" and str(c[1]).lower() == city.lower() for c in self.calls):
            return "no temperature"
        right = city.lower() in str(told[0][1]).lower() and str(degrees_in(city)) in str(told[0][2])
        return "finished" if right else "wrong report"


class Transcript(httpx.AsyncHTTPTransport):
    """Writes every body to a file."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    async def handle_async_request(self, request):
        response = await super().handle_async_request(request)
        body = await response.aread()
        note(self.file, request, response.status_code, body)
        return response


class TranscriptSync(httpx.HTTPTransport):
    def __init__(self, file):
        super().__init__()
        self.file = file

    def handle_request(self, request):
        response = super().handle_request(request)
        note(self.file, request, response.status_code, response.read())
        return response


def note(file, request, status, body):
    if file:
        with open(file, "a") as f:
            f.write(
                "> %s %s\n%s\n< %d\n%s\n\n"
                % (request.method, request.url.path, request.content.decode(), status, body.decode(errors="replace"))
            )


def openai_agents(base, model, world, file):
    import agents
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(
        base_url=base,
        api_key="-",
        max_retries=0,
        http_client=httpx.AsyncClient(transport=Transcript(file), timeout=300),
    )

    @agents.function_tool
    def find_city(person: str) -> str:
        """The city where a person lives."""
        return world.find_city(person)

    @agents.function_tool
    def get_temperature(city: str) -> str:
        """The temperature of a city now."""
        return world.get_temperature(city)

    @agents.function_tool
    def report(city: str, temperature: str) -> str:
        """Reports the temperature of a city. This is the last step."""
        return world.report(city, temperature)

    agent = agents.Agent(
        name="assistant",
        instructions=SYSTEM,
        tools=[find_city, get_temperature, report],
        model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client),
        tool_use_behavior=agents.StopAtTools(stop_at_tool_names=["report"]),
        model_settings=agents.ModelSettings(temperature=0, max_tokens=TOKENS, parallel_tool_calls=False),
    )
    return str(agents.Runner.run_sync(agent, wish(world.person), max_turns=TURNS).final_output)


def langgraph(base, model, world, file):
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    def find_city(person: str) -> str:
        """The city where a person lives."""
        return world.find_city(person)

    def get_temperature(city: str) -> str:
        """The temperature of a city now."""
        return world.get_temperature(city)

    @tool(return_direct=True)
    def report(city: str, temperature: str) -> str:
        """Reports the temperature of a city. This is the last step."""
        return world.report(city, temperature)

    chat = ChatOpenAI(
        model=model,
        base_url=base,
        api_key="-",
        temperature=0,
        max_tokens=TOKENS,
        max_retries=0,
        http_client=httpx.Client(transport=TranscriptSync(file), timeout=300),
    )
    tools = [find_city, get_temperature, report]
    agent = create_react_agent(chat.bind_tools(tools, parallel_tool_calls=False), tools, prompt=SYSTEM)
    state = agent.invoke({"messages": [("user", wish(world.person))]}, {"recursion_limit": 2 * TURNS + 1})
    return str(state["messages"][-1].content)


def pydantic_ai(base, model, world, file):
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(
        base_url=base, api_key="-", http_client=httpx.AsyncClient(transport=Transcript(file), timeout=300)
    )

    def report(city: str, temperature: str) -> str:
        """Reports the temperature of a city. This is the last step."""
        return world.report(city, temperature)

    agent = Agent(
        OpenAIChatModel(model, provider=provider),
        system_prompt=SYSTEM,
        output_type=[report, str],
        model_settings={"temperature": 0.0, "max_tokens": TOKENS, "parallel_tool_calls": False},
    )

    @agent.tool_plain
    def find_city(person: str) -> str:
        """The city where a person lives."""
        return world.find_city(person)

    @agent.tool_plain
    def get_temperature(city: str) -> str:
        """The temperature of a city now."""
        return world.get_temperature(city)

    return str(agent.run_sync(wish(world.person), usage_limits=UsageLimits(request_limit=TURNS)).output)


def smolagents(base, model, world, file):
    from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def find_city(person: str) -> str:
        """The city where a person lives.

        Args:
            person: the person's name
        """
        return world.find_city(person)

    @tool
    def get_temperature(city: str) -> str:
        """The temperature of a city now.

        Args:
            city: the city's name
        """
        return world.get_temperature(city)

    @tool
    def report(city: str, temperature: str) -> str:
        """Reports the temperature of a city. This is the last step.

        Args:
            city: the city's name
            temperature: its temperature
        """
        return world.report(city, temperature)

    chat = OpenAIServerModel(
        model,
        api_base=base,
        api_key="-",
        temperature=0,
        max_tokens=TOKENS,
        parallel_tool_calls=False,
        client_kwargs={"max_retries": 0, "http_client": httpx.Client(transport=TranscriptSync(file), timeout=300)},
    )
    agent = ToolCallingAgent(
        tools=[find_city, get_temperature, report], model=chat, max_steps=TURNS, verbosity_level=LogLevel.OFF
    )
    return str(agent.run(wish(world.person)))


FRAMEWORKS = {
    "openai-agents": openai_agents,
    "langgraph": langgraph,
    "pydantic-ai": pydantic_ai,
    "smolagents": smolagents,
}


def main():
    framework, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    base = "http://127.0.0.1:%d/v1" % port
    model = httpx.get(base + "/models").json()["data"][0]["id"]
    folder = Path(sys.argv[4]) if len(sys.argv) > 4 else None
    for i in range(n):
        world, error, final = World(PEOPLE[i % len(PEOPLE)]), None, ""
        file, begun = folder / ("%02d.txt" % i) if folder else None, time.monotonic()
        if file:
            file.unlink(missing_ok=True)
        asyncio.set_event_loop(asyncio.new_event_loop())
        try:
            final = FRAMEWORKS[framework](base, model, world, file)
        except Exception as e:
            error = type(e).__name__
            final = str(e)
        if file:
            with open(file, "a") as f:
                f.write("calls: %s\nfinal: %s %s\n" % (world.calls, error, final))
        print(
            json.dumps(
                {
                    "task": i,
                    "outcome": error or world.outcome(),
                    "seconds": round(time.monotonic() - begun, 1),
                    "calls": len(world.calls),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
