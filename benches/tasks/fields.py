"""The fields of the World Factbook that questions are asked about, by the type of their values.

A field: its path in the file of a country, its name as the passage has it, and questions. The first question uses the
field's own words, the others do not. `{}` is the country. Fields of one type are distractors of each other: whoever
looks for a percentage finds several.
"""

TYPES = {
    "percentage": [
        ("People and Society/Population growth rate/text", "Population growth rate", [
            "What is the population growth rate of {}?",
            "How fast does the number of people in {} rise each year?",
            "By how much do the inhabitants of {} increase annually?"]),
        ("People and Society/Urbanization/urban population/text", "Urban population", [
            "How large is the urban population of {}?",
            "What share of the people of {} live in towns and cities?",
            "How much of {} dwells in a city?"]),
        ("Economy/Unemployment rate/text", "Unemployment rate", [
            "What is the unemployment rate of {}?",
            "How many of those who could work in {} have no job?",
            "What part of the workers of {} is out of work?"]),
        ("Economy/Inflation rate (consumer prices)/text", "Inflation rate (consumer prices)", [
            "How high is inflation in {}?",
            "By how much did things in shops become dearer in {}?",
            "How quickly does money lose its value in {}?"]),
        ("Economy/GDP - real growth rate/text", "GDP real growth rate", [
            "What is the real growth rate of GDP in {}?",
            "How fast does the economy of {} expand?",
            "By how much did national output grow in {}?"]),
        ("Economy/Population below poverty line/text", "Population below poverty line", [
            "What share of the population of {} lives below the poverty line?",
            "How many of the people of {} are poor?",
            "Which part of those who live in {} has too little to live on?"]),
        ("Geography/Land use/forest/text", "Forest", [
            "How much of {} is forest?",
            "What share of {} is covered by trees?",
            "How much woodland does {} have?"]),
        ("People and Society/HIV/AIDS - adult prevalence rate/text", "HIV/AIDS adult prevalence rate", [
            "What is the adult prevalence rate of HIV/AIDS in {}?",
            "How many grown people in {} carry the virus?",
            "Which part of the adults of {} is infected?"]),
        ("Communications/Internet users/percent of population/text", "Internet users", [
            "How many internet users does {} have?",
            "What share of the people of {} is online?",
            "How common is going on the web in {}?"]),
        ("Economy/Industrial production growth rate/text", "Industrial production growth rate", [
            "What is the growth rate of industrial production in {}?",
            "By how much did the factories of {} make more?",
            "How did the output of manufacturing change in {}?"]),
    ],
    "money": [
        ("Economy/GDP (purchasing power parity)/text", "GDP (purchasing power parity)", [
            "What is the GDP of {} at purchasing power parity?",
            "How large is the economy of {} once prices are made comparable?",
            "What is all that {} produces worth, adjusted for what things cost there?"]),
        ("Economy/GDP (official exchange rate)/text", "GDP (official exchange rate)", [
            "What is the GDP of {} at the official exchange rate?",
            "How large is the economy of {} in dollars as banks change them?",
            "What does {} produce in a year, converted at the bank's price of its currency?"]),
        ("Economy/GDP - per capita (PPP)/text", "GDP per capita", [
            "What is the GDP per capita of {}?",
            "How much does the average person in {} produce?",
            "What would each inhabitant of {} have if output were shared equally?"]),
        ("Economy/Exports/text", "Exports", [
            "How large are the exports of {}?",
            "For how much does {} sell goods abroad?",
            "What do other countries pay {} for its goods?"]),
        ("Economy/Imports/text", "Imports", [
            "How large are the imports of {}?",
            "For how much does {} buy goods abroad?",
            "What does {} spend on goods from other countries?"]),
        ("Economy/Budget/revenues/text", "Budget revenues", [
            "What are the budget revenues of {}?",
            "How much money does the state of {} take in?",
            "What does the treasury of {} receive in a year?"]),
        ("Economy/Budget/expenditures/text", "Budget expenditures", [
            "What are the budget expenditures of {}?",
            "How much money does the state of {} spend?",
            "What does the government of {} pay out in a year?"]),
        ("Economy/Debt - external/text", "External debt", [
            "How high is the external debt of {}?",
            "What does {} owe to foreigners?",
            "How much has {} borrowed abroad?"]),
        ("Economy/Reserves of foreign exchange and gold/text", "Reserves of foreign exchange and gold", [
            "How large are the reserves of foreign exchange and gold of {}?",
            "What has the central bank of {} put aside?",
            "How much does {} keep in bullion and other people's currency?"]),
    ],
    "years": [
        ("People and Society/Life expectancy at birth/total population/text", "Life expectancy at birth", [
            "What is the life expectancy at birth in {}?",
            "How long do people in {} live?",
            "How old may a newborn of {} hope to become?"]),
        ("People and Society/Life expectancy at birth/male/text", "Male life expectancy", [
            "What is the male life expectancy in {}?",
            "How long does a man in {} live?",
            "How old do boys born in {} become?"]),
        ("People and Society/Life expectancy at birth/female/text", "Female life expectancy", [
            "What is the female life expectancy in {}?",
            "How long does a woman in {} live?",
            "How old do girls born in {} become?"]),
        ("People and Society/Median age/total/text", "Median age", [
            "What is the median age in {}?",
            "Half of the people of {} are younger than what?",
            "How old is the person in the middle of {}?"]),
        ("People and Society/School life expectancy (primary to tertiary education)/total/text",
         "School life expectancy", [
            "What is the school life expectancy in {}?",
            "For how long do pupils of {} learn?",
            "How much time does a child of {} spend in class?"]),
        ("People and Society/Mother's mean age at first birth/text", "Mother's mean age at first birth", [
            "What is a mother's mean age at first birth in {}?",
            "How old are women in {} when they have their eldest child?",
            "When do women of {} start a family?"]),
    ],
    "rate": [
        ("People and Society/Birth rate/text", "Birth rate", [
            "What is the birth rate of {}?",
            "How many babies come into the world in {}?",
            "How often are children delivered in {}?"]),
        ("People and Society/Death rate/text", "Death rate", [
            "What is the death rate of {}?",
            "How many people in {} pass away?",
            "How often does somebody in {} die?"]),
        ("People and Society/Net migration rate/text", "Net migration rate", [
            "What is the net migration rate of {}?",
            "How many more people move to {} than leave?",
            "Do people settle in {} or go away from it, and how many?"]),
        ("People and Society/Infant mortality rate/total/text", "Infant mortality rate", [
            "What is the infant mortality rate of {}?",
            "How many newborns in {} do not survive?",
            "How often do babies die in {}?"]),
        ("People and Society/Total fertility rate/text", "Total fertility rate", [
            "What is the total fertility rate of {}?",
            "How many sons and daughters does a woman of {} have?",
            "How large are families in {}?"]),
        ("People and Society/Maternal mortality rate/text", "Maternal mortality rate", [
            "What is the maternal mortality rate of {}?",
            "How many women die in childbed in {}?",
            "How dangerous is giving birth in {}?"]),
    ],
    "length": [
        ("Geography/Coastline/text", "Coastline", [
            "How long is the coastline of {}?",
            "How far does the sea border on {}?",
            "How much shore does {} have?"]),
        ("Transportation/Roadways/total/text", "Roadways", [
            "How long are the roadways of {}?",
            "How far could one drive on the streets of {}?",
            "What do all highways of {} add up to?"]),
        ("Transportation/Railways/total/text", "Railways", [
            "How long are the railways of {}?",
            "How much track do the trains of {} have?",
            "What do all lines for trains in {} add up to?"]),
        ("Transportation/Waterways/text", "Waterways", [
            "How long are the waterways of {}?",
            "How far can boats go inland in {}?",
            "How much river and canal of {} can ships use?"]),
        ("Geography/Land boundaries/total/text", "Land boundaries", [
            "How long are the land boundaries of {}?",
            "How far do frontiers run around {}?",
            "How much border does {} share with its neighbours?"]),
    ],
    "area": [
        ("Geography/Area/total/text", "Total area", [
            "What is the total area of {}?",
            "How large is {}?",
            "How big a country is {} all in all?"]),
        ("Geography/Area/land/text", "Land area", [
            "What is the land area of {}?",
            "How large is the dry part of {}?",
            "How much ground does {} have without lakes and rivers?"]),
        ("Geography/Area/water/text", "Water area", [
            "What is the water area of {}?",
            "How much of {} do lakes and rivers cover?",
            "How large are all inland seas of {} together?"]),
        ("Geography/Irrigated land/text", "Irrigated land", [
            "How much irrigated land does {} have?",
            "How many fields does {} bring water to?",
            "How large are the artificially watered farms of {}?"]),
    ],
    "count": [
        ("People and Society/Population/text", "Population", [
            "What is the population of {}?",
            "How many people live in {}?",
            "How many inhabitants does {} have?"]),
        ("Economy/Labor force/text", "Labor force", [
            "How large is the labor force of {}?",
            "How many people in {} work or look for a job?",
            "How many hands does the economy of {} have?"]),
        ("Transportation/Airports/text", "Airports", [
            "How many airports does {} have?",
            "At how many places can planes land in {}?",
            "How many airfields are there in {}?"]),
        ("Transportation/Airports - with paved runways/total/text", "Airports with paved runways", [
            "How many airports with paved runways does {} have?",
            "On how many concrete or asphalt strips can one land in {}?",
            "How many airfields of {} have a hard surface?"]),
        ("Communications/Telephones - mobile cellular/total/text", "Mobile cellular telephones", [
            "How many mobile cellular telephones does {} have?",
            "How many phones do people in {} carry in their pockets?",
            "How many subscriptions without a wire are there in {}?"]),
        ("Communications/Telephones - fixed lines/total subscriptions/text", "Fixed telephone lines", [
            "How many fixed telephone lines does {} have?",
            "How many phones in {} hang on a wire?",
            "How many landlines are there in {}?"]),
        ("People and Society/HIV/AIDS - deaths/text", "HIV/AIDS deaths", [
            "How many HIV/AIDS deaths does {} count?",
            "How many people of {} did the virus kill?",
            "How many died of the immune disease in {}?"]),
    ],
    "name": [
        ("Government/Capital/name/text", "Capital", [
            "What is the capital of {}?",
            "Which city is {} governed from?",
            "Where does the government of {} sit?"]),
        ("Government/Country name/conventional long form/text", "Conventional long form of the name", [
            "What is the conventional long form of the name of {}?",
            "What is {} called in full?",
            "How is {} named on treaties?"]),
        ("Geography/Elevation extremes/highest point/text", "Highest point", [
            "What is the highest point of {}?",
            "Which mountain of {} rises above all others?",
            "How far up can one climb in {}?"]),
        ("Geography/Elevation extremes/lowest point/text", "Lowest point", [
            "What is the lowest point of {}?",
            "Which place of {} lies deepest?",
            "How far down does the ground of {} go?"]),
        ("Government/National anthem/name/text", "National anthem", [
            "What is the national anthem of {}?",
            "Which song is sung for {}?",
            "What does one hear when the flag of {} is raised?"]),
        ("Government/Government type/text", "Government type", [
            "What is the government type of {}?",
            "How is {} ruled?",
            "What kind of state is {}?"]),
        ("People and Society/Nationality/noun/text", "Nationality", [
            "What is the nationality of people from {}?",
            "What does one call somebody from {}?",
            "By what word are the citizens of {} known?"]),
        ("Communications/Internet country code/text", "Internet country code", [
            "What is the internet country code of {}?",
            "What do web addresses of {} end in?",
            "Which letters follow the dot in addresses of {}?"]),
    ],
    "energy": [
        ("Energy/Electricity - production/text", "Electricity production", [
            "How much is the electricity production of {}?",
            "How much current do the power plants of {} make?",
            "What do the generators of {} deliver?"]),
        ("Energy/Electricity - consumption/text", "Electricity consumption", [
            "How much is the electricity consumption of {}?",
            "How much current do the people of {} use?",
            "What do the lamps and machines of {} draw?"]),
        ("Energy/Electricity - exports/text", "Electricity exports", [
            "How much electricity does {} export?",
            "How much current does {} sell to its neighbours?",
            "What does {} send through cables to other countries?"]),
        ("Energy/Electricity - imports/text", "Electricity imports", [
            "How much electricity does {} import?",
            "How much current does {} buy from its neighbours?",
            "What does {} receive through cables from other countries?"]),
    ],
}
